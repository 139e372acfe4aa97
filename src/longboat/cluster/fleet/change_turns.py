"""The turns of changes of the fleet that wait: those of adapters, within their client's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__all__ = ("Change", "ChangeTurns")

Change = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Carries one order out; its ``timeout_s`` is what is left of the client's time. Raises nothing."""

_SHORT = frozenset({"count", "add_key", "remove_key"})
"""Orders that are a few writes. They wait for no adapter; ``write_turn`` keeps the writes apart."""


class ChangeTurns:
    """The turns of changes of adapters. One that does not get its turn in its client's time is not carried out."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def carry_out(self, change: Change, order: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the turn and carry the order out; return the change's answer, or a refusal with status 409.

        order: what ``change`` takes; ``timeout_s`` counts from now. One of a count or a key needs no turn.
        """
        if not _SHORT.isdisjoint(order):
            return await change(order)
        timeout_s = float(order["timeout_s"])
        deadline_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._turn.acquire()
        except TimeoutError:
            what = f"another change of the fleet still runs after {timeout_s:.0f} s, and this one was not carried out"
            return {"status": 409, "error": what, "hint": "ask again, or wait longer with ?timeout_s="}
        try:
            return await change({**order, "timeout_s": max(0.0, deadline_s - time.monotonic())})
        finally:
            self._turn.release()
