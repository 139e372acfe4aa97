"""Replicas, nodes and gateways that an operator has drained; kept in the controller's values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longboat.core.states import Phase, ReplicaState

__all__ = ("Drains", "read_drains", "values_with_drains")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drains:
    """replicas: by their whole names; nodes, gateways: node ids"""

    replicas: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    gateways: frozenset[str] = frozenset()

    def leaves(self, state: ReplicaState) -> bool:
        """Return whether a replica is to be drained.

        One whose first rank is on a node that is taken out, Serve exchanges by itself, once another is ready.
        """
        if state.phase is not Phase.READY:
            return False
        further = {rank.node_id for rank in state.ranks if rank.node_rank > 0}
        first = {rank.node_id for rank in state.ranks if rank.node_rank == 0}
        return state.replica in self.replicas or bool(further & self.nodes and not first & self.nodes)

    def is_drained(self, node_id: str) -> bool:
        """Return whether a node's gateway takes no new requests, and says so to load balancers."""
        return node_id in self.gateways or node_id in self.nodes


def read_drains(values: Mapping[str, Any]) -> Drains:
    """Read the drains in the controller's values."""
    kept = values.get("drains", {})
    return Drains(**{name: frozenset(kept.get(name, ())) for name in ("replicas", "nodes", "gateways")})


def values_with_drains(values: Mapping[str, Any], drains: Drains) -> dict[str, Any]:
    """Return the controller's values with other drains."""
    kept = {"replicas": sorted(drains.replicas), "nodes": sorted(drains.nodes), "gateways": sorted(drains.gateways)}
    return {**values, "drains": kept}
