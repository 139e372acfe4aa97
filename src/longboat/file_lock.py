"""Locks of files, which the kernel releases when their process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

__all__ = ("FileLock",)

PAUSE_S: Final = 0.02
ROUND_S: Final = 60.0


class FileLock:
    """A lock that was taken. A context manager; leaving it releases the lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def taken(cls, path: Path, *, shared: bool = False) -> FileLock | None:
        """Take the lock at once; None where another process has it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    @classmethod
    def awaited(cls, path: Path, within_s: float, *, shared: bool = False) -> FileLock | None:
        """Take the lock as soon as that is possible; None where another process has it until the deadline."""
        deadline_s = time.monotonic() + within_s
        while (lock := cls.taken(path, shared=shared)) is None and time.monotonic() < deadline_s:
            time.sleep(PAUSE_S)
        return lock

    @classmethod
    def held(cls, path: Path, waiting: Callable[[], None] = lambda: None) -> FileLock:
        """Take the lock, however long another process has it. waiting: called once, before a wait."""
        if (lock := cls.taken(path)) is not None:
            return lock
        waiting()
        while (lock := cls.awaited(path, ROUND_S)) is None:
            pass
        return lock

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
