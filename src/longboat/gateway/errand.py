"""An answer that must be waited for, though no engine gives it: other workers are asked, or shared counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ("Errand",)

T = TypeVar("T")


class Errand(Generic[T]):
    """Occupies a client's connection like an exchange. ``done`` gets what the work returned, unless the client left.

    The work itself is ended when the client leaves; it must bound how long it takes.
    """

    __slots__ = ("_done", "_task")

    def __init__(self, work: Coroutine[Any, Any, T], done: Callable[[T], None]) -> None:
        self._done = done
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._hand_over)

    def abort(self) -> None:
        self._task.cancel()

    def pause(self) -> None:
        """Nothing flows yet."""

    def resume(self) -> None:
        """Nothing flows yet."""

    def sweep(self, sweeps_allowed: float) -> None:
        """The work has its own deadline."""

    def _hand_over(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            self._done(task.result())
