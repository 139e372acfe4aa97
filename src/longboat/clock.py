"""The real time."""

from __future__ import annotations

import time
from typing import Final

__all__ = ("WALL", "WallClock")


class WallClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()


WALL: Final = WallClock()
