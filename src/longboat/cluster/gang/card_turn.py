"""Lets the engines that share a card start one after the other.

An engine finds out at its start how much memory it may take, from what is in use on its card before and after a trial
step. What another engine takes or frees meanwhile would count as its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from longboat.file_lock import FileLock

__all__ = ("card_turn",)

ASK_EVERY_S = 0.2


@asynccontextmanager
async def card_turn(run: Path, cards: Sequence[str]) -> AsyncIterator[None]:
    """Hold these cards for a start; it waits while another start on this node holds one of them.

    run: the node's run folder, which keeps a lock file for each card. The kernel releases it if this process dies.
    """
    with ExitStack() as held:
        for card in sorted(cards):
            path = run / f"card-{re.sub(r'[^A-Za-z0-9-]', '_', card)}.lock"
            while (lock := FileLock.taken(path)) is None:  # noqa: ASYNC110 - another process holds it
                await asyncio.sleep(ASK_EVERY_S)
            held.enter_context(lock)
        yield
