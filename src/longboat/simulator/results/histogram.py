"""A histogram with bins of equal ratio: any number of values in a few kilobytes."""

from __future__ import annotations

import math
from typing import Final

__all__ = ("Histogram",)

_RATIO: Final = 1.005  # between the ends of a bin: a quantile is off by a quarter of a percent
_LEAST: Final = 1e-7  # values below it count as it
_LOG_RATIO: Final = math.log(_RATIO)
_FIRST: Final = math.floor(math.log(_LEAST) / _LOG_RATIO)  # number of the bin of the least value


class Histogram:
    """Counts of positive values, for quantiles and the mean."""

    __slots__ = ("_bins", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0  # sum of all values
        self._bins: list[int] = []  # from ``_FIRST`` on, up to the highest that has values

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value ``count`` times."""
        at = math.floor(math.log(max(value, _LEAST)) / _LOG_RATIO) - _FIRST
        if at >= len(self._bins):
            self._bins.extend([0] * (at + 1 - len(self._bins)))
        self._bins[at] += count
        self.count += count
        self.total += value * count

    def add_series(self, first: float, growth: float, steps: int, count: int) -> None:
        """Count ``steps`` values that grow from one to the next, each of them ``count`` times."""
        while steps > 0:
            alike = steps
            if growth > 0.0:
                alike = min(steps, 1 + int(first * (_RATIO - 1.0) / growth))
            self.add(first + growth * (alike - 1) / 2.0, alike * count)
            first += growth * alike
            steps -= alike

    def quantile(self, part: float) -> float:
        """Return the value below which ``part`` of the values lie; 0 without values."""
        rank, seen = part * self.count, 0
        for at, held in enumerate(self._bins):
            seen += held
            if held and seen >= rank:
                return _middle(at)
        return 0.0

    def points(self, count: int) -> list[tuple[float, float]]:
        """Return up to about ``count`` points (value, part of the values up to it) of the cumulative distribution."""
        found: list[tuple[float, float]] = []
        seen, noted = 0, 0.0
        for at, held in enumerate(self._bins):
            seen += held
            part = seen / self.count
            if held and (part - noted >= 1.0 / count or seen == self.count):
                found.append((_middle(at), part))
                noted = part
        return found


def _middle(at: int) -> float:
    """Return the value in the middle of a bin."""
    return math.exp((at + _FIRST + 0.5) * _LOG_RATIO)
