"""Hysteresis of a count: near the edge between two counts, chance alone takes the load across it and back.

More replicas are asked for soon where even a lower load needs them, and else if the need lasts. Replicas leave soon
where even a higher load does not need them, and else after a longer while.
"""

from __future__ import annotations

from collections import deque

__all__ = ("Needs",)

_LASTING = 1.0 / 12.0
"""Part of a cold start for which each need must last: a shorter one is over long before the replica is ready."""
_NEAR_LASTING_S = 10.0
"""Seconds at least for which a need must last that a little less load would not have."""


class _Extreme:
    """The highest of the values of the last while; of their negatives, the least."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, int]] = deque()  # falling, oldest first

    def add(self, now_s: float, value: int, span_s: float) -> int:
        """Note a value, and return the highest one of the span."""
        values = self._values
        while values and values[-1][1] <= value:
            values.pop()
        values.append((now_s, value))
        while values[0][0] < now_s - span_s:
            values.popleft()
        return values[0][1]


class Needs:
    """The needs of the last while, for the load as it is and for one that is off by chance."""

    def __init__(self, now_s: float, count: int) -> None:
        """count: replicas at the beginning, which counts as a need"""
        self._least, self._rising = _Extreme(), _Extreme()  # negatives of needs
        self._most, self._falling = _Extreme(), _Extreme()
        self._most.add(now_s, count, 0.0)
        self._falling.add(now_s, count, 0.0)

    def rising(self, now_s: float, least: int, needed: int, cold_s: float) -> int:
        """Return the need that lasts. least: the need of a load that is lower by chance"""
        span_s = _LASTING * cold_s
        least = -self._least.add(now_s, -least, span_s)
        return max(least, -self._rising.add(now_s, -needed, max(span_s, _NEAR_LASTING_S)))

    def falling(self, now_s: float, needed: int, most: int, patience_s: float, near_patience_s: float) -> int:
        """Return the count that is kept. most: the need of a load that is higher by chance"""
        soon = self._most.add(now_s, most, patience_s)
        return min(soon, self._falling.add(now_s, needed, near_patience_s))
