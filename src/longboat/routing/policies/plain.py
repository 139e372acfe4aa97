"""Policies that know no prefixes: round robin, least requests, power of two choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from longboat.routing.policies.contract import Choice, ReplicaLoad, RoutingPolicy, View
from longboat.routing.prefixes.prompt import Prompt

__all__ = ("LeastRequests", "RoundRobin")


class RoundRobin(RoutingPolicy):
    """Gives requests to the replicas in turn."""

    name = "round_robin"

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose the next one."""
        return Choice(turn % len(replicas), _IN_TURN)


class LeastRequests(RoutingPolicy):
    """Gives a request to the replica with the fewest requests of this gateway; equals take turns."""

    name = "least_requests"
    terms: tuple[str, ...] = ("requests",)

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose one of those with the fewest."""
        fewest = min([replica.requests for replica in replicas])
        least = [at for at, replica in enumerate(replicas) if replica.requests == fewest]
        return Choice(least[turn % len(least)], _FEWEST)


_IN_TURN: Final = "its turn"
_FEWEST: Final = "fewest requests"
