"""What all ways to count replicas share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from longboat.core.scaling import ModelObservation

__all__ = ("Rule", "Want")


@dataclass(frozen=True, kw_only=True)
class Want:
    """A count that a rule asks for, before the bounds of the model and the needs of others."""

    replicas: int
    reason: str  # in words; without a full stop, as other parts may follow
    needed: int | None = None  # without what is kept only for a while; None: all of them
    terms: Mapping[str, float] = field(default_factory=dict)  # the numbers behind it


class Rule(Protocol):
    """A way to count one model's replicas."""

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Note what happened since the last observation."""
        ...

    def want(self, now_s: float, current: int) -> Want:
        """Return the count that is right from now on. current: ready and starting replicas that are wanted so far"""
        ...

    def hold(self) -> None:
        """Note that something else decides the count now. Delays begin again afterwards."""
        return
