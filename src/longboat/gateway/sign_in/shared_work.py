"""Work that several requests wait for, and that goes on when the request that began it has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ("SharedWork",)

K = TypeVar("K")
T = TypeVar("T")


class SharedWork(Generic[K, T]):
    """Runs one piece of work per key at a time. The work must bound how long it takes."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[T]] = {}

    async def join(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the running work of a key returns, or raise what it raises; begin it where none runs."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(work())
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)
