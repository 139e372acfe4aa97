"""How many slots a tenant wanted lately: mean and spread over the last seconds, so that as many can be kept for it."""

from __future__ import annotations

import math

__all__ = ("RecentDemand", "slots_wanted")

_MEMORY_S = 10.0
"""What was so long ago counts about a third of what is now."""

_SPREADS = 3.0
"""So many standard deviations above the mean are kept: who comes at random then finds room 99 times of 100."""

_MOST_TIMES, _MOST_MORE = 2.0, 2.0
"""The margin is at most so many times the mean, and so much more: who has gone seems to vary much."""


class RecentDemand:
    """Time average of the number of requests that run and wait. mean: of it; variance: of it, in slots squared."""

    __slots__ = ("_since_s", "_square", "_told_s", "mean")

    def __init__(self, now_s: float) -> None:
        self.mean = 0.0
        self._square = 0.0
        self._since_s = now_s
        self._told_s = now_s

    @property
    def variance(self) -> float:
        spread = self._square - self.mean * self.mean
        return spread if spread > 0.0 else 0.0

    def note(self, num_requests: int, now_s: float) -> None:
        """So many there were since the last call. To be called before the number changes."""
        passed_s = now_s - self._told_s
        if passed_s <= 0.0:
            return
        self._told_s = now_s
        known_s = now_s - self._since_s  # the average of a short past is that of all of it
        part = passed_s / (known_s if known_s < _MEMORY_S else _MEMORY_S + passed_s)
        self.mean += (num_requests - self.mean) * part
        self._square += (num_requests * num_requests - self._square) * part


def slots_wanted(mean: float, variance: float) -> float:
    """What tenants may be expected to want soon, all together. mean, variance: sums of theirs."""
    if mean <= 0.0:
        return 0.0
    margin, most = _SPREADS * math.sqrt(variance), _MOST_TIMES * mean + _MOST_MORE
    return mean + (margin if margin < most else most) + 1.0
