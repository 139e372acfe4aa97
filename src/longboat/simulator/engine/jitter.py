"""What a step takes beyond its terms: other processes, wake-ups and collections of garbage, as they were measured."""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ("Jitter",)


class Jitter:
    """Seconds that are drawn from measured ones, each of them equally likely. The same seed draws the same ones."""

    __slots__ = ("_random", "_seconds")

    def __init__(self, seconds: Sequence[float], seed: int) -> None:
        self._seconds = list(seconds)
        self._random = random.Random(seed)

    def draw(self) -> float:
        """Return the seconds of the next step; below 0 where it takes less than its terms say."""
        return self._seconds[int(self._random.random() * len(self._seconds))]
