"""A predicted quantity with its interval and where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ("Number", "Provenance")

Provenance = Literal["measured here", "measured elsewhere", "computed, constants measured elsewhere", "computed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A value; 8 of 10 measurements are expected between ``low`` and ``high``."""

    value: float
    low: float
    high: float
    provenance: Provenance

    def map(self, function: Callable[[float], float]) -> Number:
        """Return the number that a monotonic function makes of it."""
        low, high = function(self.low), function(self.high)
        value, provenance = function(self.value), self.provenance
        return Number(value=value, low=min(low, high), high=max(low, high), provenance=provenance)

    def scaled(self, value: float) -> Number:
        """Return another value with the same relative interval."""
        factor = value / self.value
        return self.map(lambda old: old * factor)
