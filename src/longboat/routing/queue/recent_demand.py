"""Measures how many slots a tenant wanted recently, mean and spread, so that as many can be kept for it."""

from __future__ import annotations

import math
from typing import Final

__all__ = ("RecentDemand", "slots_wanted")

_MEMORY_S: Final = 10.0
"""Demand of this long ago counts about a third of the present demand."""

_SPREADS: Final = 3.0
"""Standard deviations kept above the mean: a request that comes at random then finds a slot 99 times of 100."""

_MOST_TIMES, _MOST_MORE = 2.0, 2.0
"""The margin is at most this multiple of the mean plus this many slots: a tenant that left seems to vary much."""


class RecentDemand:
    """Time average of the number of requests that run and wait."""

    __slots__ = ("_noted_s", "_since_s", "_square", "mean")

    def __init__(self, now_s: float) -> None:
        self.mean = 0.0  # in slots
        self._square = 0.0
        self._since_s = now_s
        self._noted_s = now_s

    @property
    def variance(self) -> float:
        """Variance of the number, in slots squared."""
        spread = self._square - self.mean * self.mean
        return spread if spread > 0.0 else 0.0

    def note(self, num_requests: int, now_s: float) -> None:
        """Record that there were ``num_requests`` since the last call. Call before the number changes."""
        passed_s = now_s - self._noted_s
        if passed_s <= 0.0:
            return
        self._noted_s = now_s
        known_s = now_s - self._since_s  # the average of a short past is that of all of it
        part = passed_s / (known_s if known_s < _MEMORY_S else _MEMORY_S + passed_s)
        self.mean += (num_requests - self.mean) * part
        self._square += (num_requests * num_requests - self._square) * part


def slots_wanted(mean: float, variance: float) -> float:
    """Return the slots that tenants will probably want soon, together, from the sums of their means and variances."""
    if mean <= 0.0:
        return 0.0
    margin, most = _SPREADS * math.sqrt(variance), _MOST_TIMES * mean + _MOST_MORE
    return mean + (margin if margin < most else most) + 1.0
