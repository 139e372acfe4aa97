"""Where the store keeps models, how their folders are removed, and the locks of the processes that use them."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from longboat.core.errors import ClusterError
from longboat.file_lock import FileLock

__all__ = ("Locks", "Places")

WASTE: Final = "waste"
PIN_S: Final = 1.0
"""A process that lists the store takes a model's locks for a moment; others wait for that at most this long."""
ROOM_S: Final = 300.0
"""Another process that makes room for a model deletes files, for longer on a slow disk."""

Purpose = Literal["use", "fetch"]


class Places:
    """The folders of models: whole ones, unfinished ones, and those that are being removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def models(self, key: str) -> Path:
        """Return where a whole model is."""
        return self.folder / "models" / key

    def partial(self, key: str) -> Path:
        """Return where a model is until all of it is there."""
        return self.folder / "partial" / key

    def all_of(self, kind: Literal["models", "partial"]) -> Iterator[Path]:
        """Yield the folders of all whole or of all unfinished models."""
        yield from _inside(self.folder / kind)

    def remove(self, folder: Path) -> None:
        """Remove a folder so that no process sees half of it."""
        if not folder.exists():
            return
        waste = self.folder / WASTE
        waste.mkdir(parents=True, exist_ok=True)
        target = waste / f"{folder.name}.{os.getpid()}.{time.monotonic_ns()}"
        folder.rename(target)
        shutil.rmtree(target, ignore_errors=True)

    def finish_removals(self) -> None:
        """Remove what removals that were cut have left."""
        for waste in _inside(self.folder / WASTE):
            shutil.rmtree(waste, ignore_errors=True)


class Locks:
    """The locks of one store. A process that ends releases its locks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def taken(self, key: str, purpose: Purpose) -> FileLock | None:
        """Take a model's lock at once; None where another process has it."""
        return FileLock.taken(self._path(key, purpose))

    def awaited(self, key: str, purpose: Purpose, *, shared: bool = False) -> FileLock | None:
        """Take a model's lock; None where another process keeps it longer than a look takes."""
        return FileLock.awaited(self._path(key, purpose), PIN_S, shared=shared)

    def is_used(self, key: str) -> bool:
        """Return whether a process uses or fetches a model. Processes that look at once wait for each other.

        A look takes the model's locks for a moment, which another look would mistake for a use.
        """
        with FileLock.awaited(self._path("all", "look"), PIN_S) or contextlib.nullcontext():
            for purpose in ("use", "fetch"):
                path = self._path(key, purpose)
                if not path.exists():
                    continue
                lock = FileLock.taken(path)
                if lock is None:
                    return True
                lock.release()
        return False

    def room(self) -> FileLock:
        """Wait to be the one process that makes room. Raises ClusterError where it takes another one too long."""
        lock = FileLock.awaited(path := self._path("room", "room"), ROOM_S)
        if lock is None:
            raise ClusterError(
                f"another process has been making room for weights for {ROOM_S:.0f} s",
                hint=f"look at what it waits for: fuser {path} names it",
            )
        return lock

    def _path(self, key: str, purpose: str) -> Path:
        return self._folder / f"{key}.{purpose}"


def _inside(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.iterdir()) if folder.is_dir() else ()
