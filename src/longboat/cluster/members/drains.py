"""Replicas, nodes and gateways that an operator has drained; kept in the controller's values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from longboat.core.states import Phase, ReplicaState, ResumeLevel

__all__ = ("Drains", "read_drains", "values_with_drains")

NAMES = ("replicas", "nodes", "gateways", "at_once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drains:
    """replicas: by their whole names; nodes, gateways: node ids; at_once: those of them whose streams move at once"""

    replicas: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    gateways: frozenset[str] = frozenset()
    at_once: frozenset[str] = frozenset()

    def leaves(self, state: ReplicaState, others: Iterable[ReplicaState] = ()) -> bool:
        """Return whether a replica is to be drained.

        One whose first rank is on a node that is taken out, Serve exchanges by itself, once another is ready. Where
        its streams are to move at once, it does not wait for that if one of ``others`` can continue them.
        """
        if state.phase is not Phase.READY:
            return False
        further = {rank.node_id for rank in state.ranks if rank.node_rank > 0}
        first = {rank.node_id for rank in state.ranks if rank.node_rank == 0}
        if state.replica in self.replicas or (further & self.nodes and not first & self.nodes):
            return True
        return self.moves_at_once(state) and any(self._can_continue(state, other) for other in others)

    def moves_at_once(self, state: ReplicaState) -> bool:
        """Return whether a replica's streams move as soon as it drains."""
        return state.replica in self.at_once or any(rank.node_id in self.at_once for rank in state.ranks)

    def _can_continue(self, state: ReplicaState, other: ReplicaState) -> bool:
        is_same = (other.model, other.revision) == (state.model, state.revision) and bool(state.revision)
        stays = not any(rank.node_id in self.nodes for rank in other.ranks) and other.replica not in self.replicas
        return is_same and stays and other.phase is Phase.READY and other.resume is not ResumeLevel.NONE

    def is_drained(self, node_id: str) -> bool:
        """Return whether a node's gateway takes no new requests, and says so to load balancers."""
        return node_id in self.gateways or node_id in self.nodes


def read_drains(values: Mapping[str, Any]) -> Drains:
    """Read the drains in the controller's values."""
    kept = values.get("drains", {})
    return Drains(**{name: frozenset(kept.get(name, ())) for name in NAMES})


def values_with_drains(values: Mapping[str, Any], drains: Drains) -> dict[str, Any]:
    """Return the controller's values with other drains."""
    return {**values, "drains": {name: sorted(getattr(drains, name)) for name in NAMES}}
