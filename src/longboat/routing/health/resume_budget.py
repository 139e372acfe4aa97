"""Limits how many streams resume at the same time, so that a replica's death does not drown the others in prefills."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ("ResumeBudget",)

T = TypeVar("T")


class ResumeBudget(Generic[T]):
    """A counter of the streams that resume now; the others queue, first come first served. None is refused."""

    __slots__ = ("_queue", "_running")

    def __init__(self) -> None:
        self._running: set[T] = set()
        self._queue: deque[T] = deque()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def ask(self, who: T, *, allowed: int) -> bool:
        """Return whether ``who`` may begin now; else it is queued for ``next``."""
        if who in self._running:
            return True
        if len(self._running) < allowed and not self._queue:
            self._running.add(who)
            return True
        if who not in self._queue:
            self._queue.append(who)
        return False

    def leave(self, who: T) -> None:
        """Remove a stream that has resumed or given up."""
        self._running.discard(who)
        if who in self._queue:
            self._queue.remove(who)

    def next(self, *, allowed: int) -> T | None:
        """Return the queued stream that may begin now, counted as begun; None if none may."""
        if not self._queue or len(self._running) >= allowed:
            return None
        who = self._queue.popleft()
        self._running.add(who)
        return who
