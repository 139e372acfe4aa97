"""Announces one gang to the controller: at every change, and again after the time that the controller asks for."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from longboat.cluster.protocol.messages import Verdict

__all__ = ("ANNOUNCE_EVERY_S", "Announcer")

ANNOUNCE_EVERY_S = 1.0
_EARLIEST_PART = 0.8
"""Longer intervals are shortened by chance to this part at least, so that a large fleet does not announce in step."""


class Announcer:
    """The rhythm of one gang's announcements."""

    def __init__(self, announce: Callable[[], Awaitable[Verdict | None]]) -> None:
        """announce: returns the controller's verdict; None where the controller was not reached"""
        self._announce = announce
        self._changed = asyncio.Event()
        self.every_s = ANNOUNCE_EVERY_S  # as the controller asked

    def change(self) -> None:
        """Announce soon: something changed."""
        self._changed.set()

    async def run(self) -> None:
        """Announce again and again, without end."""
        while True:
            await self.turn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._changed.wait()

    async def turn(self) -> None:
        """Announce once."""
        self._changed.clear()
        verdict = await self._announce()
        self.every_s = ANNOUNCE_EVERY_S if verdict is None else max(ANNOUNCE_EVERY_S, verdict.again_s)

    def _pause_s(self) -> float:
        if self.every_s <= ANNOUNCE_EVERY_S:
            return self.every_s
        return self.every_s * random.uniform(_EARLIEST_PART, 1.0)
