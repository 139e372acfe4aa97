"""Power of two choices: two replicas are drawn, and the less busy one gets the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from longboat.routing.policies.contract import Choice, ReplicaLoad, RoutingPolicy, View
from longboat.routing.prefixes.prompt import Prompt

__all__ = ("PowerOfTwo",)


class PowerOfTwo(RoutingPolicy):
    """Draws two replicas and takes the one with fewer requests of this gateway.

    Source: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001). SMG, Dynamo and AIBrix have
    it under this name. The draw is a hash of the turn, so that equal calls give equal choices.
    """

    name = "power_of_two"
    terms: tuple[str, ...] = ("requests",)

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose the less busy of two."""
        count = len(replicas)
        if count == 1:
            return Choice(0, _ONLY)
        draw = crc32(turn.to_bytes(8, "little"))
        first = draw % count
        second = (first + 1 + (draw >> 16) % (count - 1)) % count
        return Choice(second if replicas[second].requests < replicas[first].requests else first, _OF_TWO)


_ONLY: Final = "the only one"
_OF_TWO: Final = "less busy of two"
