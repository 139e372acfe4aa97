"""Waiting in tests: for processes to end, and for whatever becomes true, with a generous deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ("is_alive", "wait_until", "wait_until_async")

DEADLINE_S = 60.0
_PAUSE_S = 0.01


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for ``condition``; fail the test after the deadline."""
    for _ in _tries(condition, what):
        time.sleep(_PAUSE_S)


async def wait_until_async(condition: Callable[[], object], what: str = "") -> None:
    """Wait as ``wait_until`` does, while the loop runs."""
    for _ in _tries(condition, what):
        await asyncio.sleep(_PAUSE_S)


def _tries(condition: Callable[[], object], what: str) -> Iterator[None]:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, f"still waiting: {what or condition}"
        yield
