"""What rounds add up to: medians, ratios with an interval, and figures beside the limits that they should keep."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ("Figure", "Ratio", "median", "ratio", "spread")

RESAMPLES = 2000
MIN_TO_RESAMPLE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Median of the rounds' ratios, with a 95 % interval (bootstrap over rounds)."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One result. limit: the largest value it should have; None where there is none. interval: shown beside it."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def holds(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit


def median(values: Sequence[float]) -> float:
    """nan of nothing."""
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float]) -> str:
    """Smallest to largest."""
    return f"{min(values):.4g} to {max(values):.4g}" if values else "-"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """Round by round, so that what disturbed a whole round falls out. None where there is nothing to divide by."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=False) if b > 0]
    if not pairs:
        return None
    if len(pairs) < MIN_TO_RESAMPLE:
        return Ratio(middle=median(pairs), low=min(pairs), high=max(pairs))
    chance = random.Random(0)
    middles = sorted(median(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    low, high = middles[int(0.025 * RESAMPLES)], middles[int(0.975 * RESAMPLES) - 1]
    return Ratio(middle=median(pairs), low=low, high=high)
