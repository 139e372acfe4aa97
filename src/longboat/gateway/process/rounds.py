"""Work that many callers want at the same time, done once for all who wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

__all__ = ("Rounds",)


class Rounds:
    """Runs the work one round after another. Callers that come during a round share the next one."""

    def __init__(self, work: Callable[[], Awaitable[object]], *, pause_s: float = 0.0) -> None:
        """pause_s: the least time between the end of a round and the beginning of the next"""
        self._work = work
        self._pause_s = pause_s
        self._ended_s = -math.inf
        self._in_turn = asyncio.Lock()
        self._begun = 0
        self._made = 0  # the last round that ended well

    async def __call__(self) -> None:
        """Return after a whole round that began after this call. Raise what the work raised in that round."""
        came = self._begun
        async with self._in_turn:
            if self._made > came:
                return
            await asyncio.sleep(self._ended_s + self._pause_s - asyncio.get_running_loop().time())
            self._begun += 1
            number = self._begun
            await self._work()
            self._ended_s = asyncio.get_running_loop().time()
            self._made = number
