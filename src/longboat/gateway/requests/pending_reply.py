"""An answer that no engine gives and that must be waited for: other workers are asked, or shared counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ("PendingReply",)

T = TypeVar("T")


class PendingReply(Generic[T]):
    """Work that occupies a client's connection like an exchange.

    Exactly one of three functions is called at its end. The work must bound how long it takes.
    """

    __slots__ = ("_done", "_failed", "_has_left", "_left", "_task")

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        done: Callable[[T], None],
        *,
        failed: Callable[[], None],
        left: Callable[[], None],
    ) -> None:
        self._done = done  # gets what the work returned
        self._failed = failed  # the work raised; this was reported
        self._left = left  # the client left first: the work is cancelled, and what it returned is dropped
        self._has_left = False
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._hand_over)

    def ask_client(self) -> None:
        """Do nothing: the work is short."""

    def abort(self) -> None:
        """Cancel the work: the client has left."""
        self._has_left = True
        self._task.cancel()
        self._left()

    def pause(self) -> None:
        """Do nothing: no bytes flow yet."""

    def resume(self) -> None:
        """Do nothing: no bytes flow yet."""

    def sweep(self, sweeps_allowed: float) -> None:
        """Do nothing: the work has its own deadline."""

    def _hand_over(self, task: asyncio.Task[T]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            report = {"message": "the gateway failed on a request", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
        if self._has_left:
            return
        if error is not None or task.cancelled():
            self._failed()
        else:
            self._done(task.result())
