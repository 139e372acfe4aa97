"""The real time, and the common ticks of loops that repeat."""

from __future__ import annotations

import time
from typing import Final

__all__ = ("WALL", "WallClock", "until_tick_s")

_LEAST_SHARE: Final = 0.2  # of a period: a timer may run early by a rounding


class WallClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()


WALL: Final = WallClock()


def until_tick_s(period_s: float, now_s: float) -> float:
    """Return the seconds until the clock shows a whole multiple of the period; at least a fifth of the period.

    Loops of one process that sleep this long wake together: an idle process wakes as often as its quickest loop does,
    and not once for each loop.
    """
    left_s = period_s - now_s % period_s
    return left_s if left_s >= _LEAST_SHARE * period_s else left_s + period_s
