"""What all processes of a node know together of sign-ins: open sessions, and the states that were used."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from longboat.file_lock import FileLock

__all__ = ("Records",)

_MAX = 10_000
_LOOK_S = 0.05


class Records:
    """Small files in a folder that only this user can enter; in memory where there is no folder.

    A name is made of hex digits. What a file holds is sealed by its caller.
    """

    def __init__(self, folder: Path | None, life_s: float) -> None:
        self._folder = folder
        self._life_s = life_s  # a file that did not change for this time is forgotten
        self._memory: dict[
            str, tuple[float, str]
        ] = {}  # by name, the oldest first: when it changed (monotonic), its text
        self._locks: dict[str, asyncio.Lock] = {}

    def get(self, name: str) -> str | None:
        """Return the text of a record; None where there is none."""
        if self._folder is None:
            _, text = self._memory.get(name, (0.0, None))
            return text
        try:
            return (self._folder / name).read_text()
        except OSError:
            return None

    def put(self, name: str, text: str) -> None:
        """Write a record. Raise OSError where it cannot be stored."""
        if self._folder is None:
            self._remember(name, text)
            return
        self._make_folder()
        part = self._folder / f"{name}.{os.getpid()}.part"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
            handle.write(text)
        part.replace(self._folder / name)

    def add_new(self, name: str) -> bool:
        """Make an empty record; False where there was one. Raise OSError where it cannot be stored."""
        if self._folder is None:
            is_new = name not in self._memory
            self._remember(name, "")
            return is_new
        self._make_folder()
        try:
            os.close(os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def drop(self, name: str) -> None:
        """Forget a record."""
        self._memory.pop(name, None)
        if self._folder is not None:
            (self._folder / name).unlink(missing_ok=True)
            (self._folder / f"{name}.lock").unlink(missing_ok=True)

    async def has_room(self) -> bool:
        """Forget what is old, and return whether another record may be made. A thread looks through the folder."""
        if self._folder is None:
            oldest_s = time.monotonic() - self._life_s
            while self._memory and (first := next(iter(self._memory.items())))[1][0] < oldest_s:
                del self._memory[first[0]]
            return len(self._memory) < _MAX
        return await asyncio.to_thread(_swept, self._folder, time.time() - self._life_s) < _MAX

    @asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[None]:
        """Hold a record alone, among all processes, without blocking the loop."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                if self._folder is None:
                    yield
                    return
                self._make_folder()
                path = self._folder / f"{name}.lock"
                while (taken := FileLock.taken(path)) is None:  # noqa: ASYNC110 another process has no event
                    await asyncio.sleep(_LOOK_S)
                with taken:
                    yield
        finally:
            if not lock.locked():
                self._locks.pop(name, None)

    def _remember(self, name: str, text: str) -> None:
        self._memory.pop(name, None)
        self._memory[name] = (time.monotonic(), text)

    def _make_folder(self) -> None:
        assert self._folder is not None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _swept(folder: Path, oldest_s: float) -> int:
    """Remove files that did not change since a time, and return the number of records left."""
    if not folder.is_dir():
        return 0
    kept = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                is_old = entry.stat().st_mtime < oldest_s
            except FileNotFoundError:
                continue
            if is_old:
                Path(entry.path).unlink(missing_ok=True)
            elif "." not in entry.name:  # neither a lock nor a record that is being written
                kept += 1
    return kept
