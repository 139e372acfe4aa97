"""Copies of adapters on this node: pinned while a replica uses them; of the others, those used last stay."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from longboat.catalog.readers.adapter import ADAPTER_FILES
from longboat.core.errors import ClusterError
from longboat.core.sizes import readable_size
from longboat.engines.launch.adapter_store import adapters_folder, stage_adapter
from longboat.file_lock import FileLock
from longboat.weights.pieces.eviction import Room, StoredSize, choose_evictions

__all__ = ("KEPT_BYTES", "AdapterCopies")

KEPT_BYTES: Final = 20 * 10**9
"""Most bytes of all copies of a node; those in use stay beyond it."""
REVISION: Final = re.compile(r"[0-9a-f]{16}")
PIN_TRIES: Final = 50
PIN_PAUSE_S: Final = 0.02
LEFTOVER_S: Final = 3600.0
"""Age without a write from which a temporary folder belongs to no process any more."""


class AdapterCopies:
    """What one replica uses of a node's copies. Replicas share copies; the kernel ends the locks of one that died."""

    def __init__(self, home: Path, kept_bytes: int = KEPT_BYTES) -> None:
        self._home = home
        self._kept_bytes = kept_bytes
        self._pins: dict[str, FileLock] = {}  # by revision

    def use(self, source: str, revision: str) -> str:
        """Pin a copy, which is made where there is none, and return its folder.

        Raises UserInputError where ``source`` cannot be read or holds something else, ClusterError on a full disk.
        """
        pinned = self._pins.get(revision) or self._pin(revision)
        try:
            copy = adapters_folder(self._home) / revision
            if not copy.is_dir():
                self._make_room(_size_of(Path(source)))
            folder = stage_adapter(Path(source), revision, self._home)
            with contextlib.suppress(OSError):
                os.utime(copy)
        except BaseException:
            if revision not in self._pins:
                pinned.release()
            raise
        self._pins[revision] = pinned
        return folder

    def keep(self, revisions: Collection[str]) -> None:
        """Unpin the copies of all other revisions. They stay until others need their room."""
        for revision in [known for known in self._pins if known not in revisions]:
            with contextlib.suppress(OSError):
                os.utime(adapters_folder(self._home) / revision)  # used until now
            self._pins.pop(revision).release()

    def _pin(self, revision: str) -> FileLock:
        for _ in range(PIN_TRIES):  # a process that makes room has the lock for a moment
            if (lock := FileLock.taken(self._lock(revision), shared=True)) is not None:
                return lock
            time.sleep(PIN_PAUSE_S)
        raise ClusterError(f"the copy {revision} of an adapter is being removed", hint="it is tried again by itself")

    def _make_room(self, need_bytes: int) -> None:
        """Remove the copies that were not used for longest, until one more has room."""
        folder = adapters_folder(self._home)
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        found = [self._stored(copy) for copy in folder.iterdir() if REVISION.fullmatch(copy.name)]
        pinned_bytes = sum(copy.num_bytes for copy in found if copy.is_pinned)
        budget_bytes = max(self._kept_bytes, pinned_bytes + need_bytes)
        room = Room(free_bytes=shutil.disk_usage(folder).free, budget_bytes=budget_bytes)
        try:
            chosen = choose_evictions(found, need_bytes, room)
        except ClusterError:  # which speaks of weights, and of their setting
            raise _too_full(folder, need_bytes, pinned_bytes, room.free_bytes) from None
        for revision in chosen:
            self._remove(revision)

    def _stored(self, copy: Path) -> StoredSize:
        lock = FileLock.taken(self._lock(copy.name))
        if lock is not None:
            lock.release()
        try:
            used_at_s = copy.stat().st_mtime
        except OSError:  # another process removed it
            used_at_s = 0.0
        return StoredSize(key=copy.name, num_bytes=_size_of(copy), used_at_s=used_at_s, is_pinned=lock is None)

    def _remove(self, revision: str) -> None:
        """Remove a copy so that no process sees half of it. One that came into use meanwhile stays."""
        lock = FileLock.taken(self._lock(revision))
        if lock is None:
            return
        folder = adapters_folder(self._home)
        with lock, tempfile.TemporaryDirectory(dir=folder, prefix=".") as waste, contextlib.suppress(OSError):
            os.rename(folder / revision, Path(waste) / revision)

    def _lock(self, revision: str) -> Path:
        return adapters_folder(self._home) / ".locks" / revision


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed left of the folders in which they copied or removed something."""
    for leftover in folder.glob(".*"):
        if leftover.name == ".locks":
            continue
        with contextlib.suppress(OSError):  # another process removed it
            written_s = max(path.stat().st_mtime for path in (leftover, *leftover.rglob("*")))
            if time.time() - written_s > LEFTOVER_S:
                shutil.rmtree(leftover, ignore_errors=True)


def _too_full(folder: Path, need_bytes: int, pinned_bytes: int, free_bytes: int) -> ClusterError:
    what = f"the disk is too full for an adapter of {readable_size(need_bytes)}"
    told = f"{readable_size(free_bytes)} are free in {folder}, and adapters in use take {readable_size(pinned_bytes)}"
    return ClusterError(f"{what}: {told}", hint="free the disk, or put LONGBOAT_HOME on a larger one")


def _size_of(folder: Path) -> int:
    total = 0
    for name in ADAPTER_FILES:
        with contextlib.suppress(OSError):  # what is missing has an error of its own, where it is copied
            total += (folder / name).stat().st_size
    return total
