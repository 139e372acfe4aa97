"""The store: all weights of this node, each model written once and shared by every replica.

weights/partial/KEY   models that are being fetched, or whose fetch was cut
weights/models/KEY    whole models; a rename moves a model here, and engines read only here
weights/locks/KEY.*   who fetches a model (fetch), and who uses it (use); all.look, room.room: of the whole store
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from longboat.core.errors import ClusterError, UserInputError
from longboat.disk_sync import sync
from longboat.file_lock import FileLock
from longboat.telemetry import logger
from longboat.weights.pieces.eviction import Room, StoredSize, choose_evictions
from longboat.weights.pieces.manifest import Manifest
from longboat.weights.pieces.rate import Progress
from longboat.weights.store.piece_folder import ABSENT, BOOT, FILES, PieceFolder, disk_error
from longboat.weights.store.places import Locks, Places
from longboat.weights.store.progress_file import ProgressFile

__all__ = ("Store", "Stored")

KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FOLDER: Final = "weights"
log = logger("weights")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the store, whole or not."""

    key: str
    source: str
    total_bytes: int
    have_bytes: int
    is_whole: bool
    in_use: bool  # a process uses it or fetches it: it is not evicted
    used_at_s: float  # time of its last use, in seconds since 1970
    progress: Progress | None = None  # of a fetch under way


class Store:
    """The weights under a node's home folder. Several processes may use it at the same time."""

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER
        self._places = Places(self.folder)
        self._locks = Locks(self.folder / "locks")
        self._left_out: set[Path] = set()

    def published(self, key: str) -> PieceFolder | None:
        """Return a whole model; None where it is not there or not readable, or its files have other sizes.

        Raises ClusterError where the disk cannot say so: what it holds is neither fetched again nor moved.
        """
        folder = self._places.models(key)
        try:
            found = PieceFolder.opened(folder)
            return found if found.looks_whole() else None
        except (*ABSENT, UserInputError):
            return None
        except OSError as error:
            raise disk_error(error, folder) from None

    def whole(self, source: str) -> list[str]:
        """Return the keys of the whole models of a source, the last used first."""
        return [stored.key for stored in self.list() if stored.source == source and stored.is_whole]

    def opened(self, key: str) -> PieceFolder | None:
        """Return a model, whole or not; None where nothing of it is there."""
        for folder in (self._places.models(key), self._places.partial(key)):
            with contextlib.suppress(*ABSENT):
                return PieceFolder.opened(folder)
        return None

    def engine_path(self, key: str, name: str = "") -> Path:
        """Return the folder that an engine reads, or the one file of it."""
        return self._places.models(key) / FILES / name if name else self._places.models(key) / FILES

    def pin(self, key: str) -> FileLock | None:
        """Keep a whole model from being evicted while the lock is kept; None where it is being evicted."""
        lock = self._locks.awaited(key, "use", shared=True)
        if lock is not None:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._places.models(key))
        return lock

    def fetch_lock(self, key: str) -> FileLock | None:
        """Become the one process that fetches a model; None where another one does. Raises ClusterError."""
        with _disk_errors(self.folder):
            return self._locks.taken(key, "fetch")

    def begin(self, manifest: Manifest, budget_bytes: int | None) -> PieceFolder:
        """Make room for a model, and open its folder. The caller has its fetch lock.

        Raises ClusterError where the room does not suffice. A damaged whole model is opened again for its repair.
        """
        key = manifest.key
        with _disk_errors(self.folder):
            self._places.finish_removals()
            self._drop_older(manifest)
            if self._places.models(key).exists():
                _reopen(self._places, self._locks, key)
            known = PieceFolder.begun(self._places.partial(key), manifest)
            with self._locks.room():
                self._make_room(key, manifest.num_bytes - known.have_bytes, budget_bytes)
        return known

    def _make_room(self, key: str, need_bytes: int, budget_bytes: int | None) -> None:
        """Evict what must go for the rest of a model. What other fetches under way still need is not free."""
        kept = set[str]()  # models that came into use after they were chosen
        while True:
            found = self.list()
            others = (stored for stored in found if stored.key != key and stored.in_use and not stored.is_whole)
            rest = {stored.key: stored.total_bytes - stored.have_bytes for stored in others}
            free_bytes, spare_bytes = shutil.disk_usage(self.folder).free, sum(rest.values())
            room = Room(free_bytes=free_bytes, budget_bytes=budget_bytes, spare_bytes=spare_bytes)
            sizes = [_size(stored, rest.get(stored.key, 0), stored.key in kept) for stored in found]
            refused = {chosen for chosen in choose_evictions(sizes, need_bytes, room) if not _evicted(self, chosen)}
            if not refused:
                return
            kept |= refused

    def publish(self, folder: PieceFolder) -> None:
        """Let engines see a model of which all pieces are there. Raises as ``PieceFolder.finish`` does."""
        folder.finish()
        target = self._places.models(folder.manifest.key)
        with _disk_errors(folder.folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            ProgressFile(folder.folder).remove()
            folder.folder.rename(target)
            os.utime(target)
            sync(target.parent)

    def progress(self, key: str) -> ProgressFile:
        """Return where the process that fetches a model notes its progress for other processes."""
        return ProgressFile(self._places.partial(key))

    def list(self) -> list[Stored]:
        """Return all models, the last used first. What cannot be read as one is left out."""
        found = [self._stored(path) for kind in ("models", "partial") for path in self._places.all_of(kind)]
        return sorted((stored for stored in found if stored), key=lambda stored: -stored.used_at_s)

    def evict(self, key: str) -> None:
        """Remove a model. Raises ClusterError while a process uses it, UserInputError where there is none."""
        if not KEY.fullmatch(key) or not (self._places.models(key).exists() or self._places.partial(key).exists()):
            raise UserInputError(f"the store has no weights {key!r}", hint="longboat weights list shows their names")
        with contextlib.ExitStack() as stack:
            for purpose in ("use", "fetch"):
                lock = self._locks.awaited(key, purpose)
                if lock is None:
                    raise ClusterError(f"the weights {key} are in use", hint="stop the replicas that use them first")
                stack.enter_context(lock)
            with _disk_errors(self.folder):
                for folder in (self._places.models(key), self._places.partial(key)):
                    self._places.remove(folder)

    def _stored(self, path: Path) -> Stored | None:
        is_whole = path.parent.name == "models"
        try:
            folder = PieceFolder.opened(path)
            return Stored(
                key=path.name,
                source=folder.manifest.source,
                total_bytes=folder.manifest.num_bytes,
                have_bytes=folder.have_bytes,
                is_whole=is_whole,
                in_use=self._locks.is_used(path.name),
                used_at_s=path.stat().st_mtime,
                progress=None if is_whole else self.progress(path.name).read(),
            )
        except (FileNotFoundError, UserInputError):  # removed meanwhile, or damaged: its fetch mends it
            return None
        except OSError as error:
            if path not in self._left_out:
                self._left_out.add(path)
                log.warning("%s is left out of the weights: %s", path, error.strerror)
            return None

    def _drop_older(self, manifest: Manifest) -> None:
        """Remove cut fetches of other contents of the same source: they are never continued."""
        for stored in self.list():
            if stored.source == manifest.source and stored.key != manifest.key and not stored.is_whole:
                with contextlib.suppress(ClusterError):
                    self.evict(stored.key)


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Raise ClusterError for what the system says of a disk that is full, fails, or cannot be written."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, folder) from None


def _evicted(store: Store, key: str) -> bool:
    """Remove a model, unless a process has removed it already; False where one has begun to use it."""
    try:
        with contextlib.suppress(UserInputError):
            store.evict(key)
    except ClusterError:
        return False
    return True


def _size(stored: Stored, rest_bytes: int, is_kept: bool) -> StoredSize:
    """Return what a model takes. rest_bytes: that its fetch still writes."""
    return StoredSize(
        key=stored.key,
        num_bytes=stored.have_bytes + rest_bytes,
        used_at_s=stored.used_at_s,
        is_pinned=stored.in_use or is_kept,
    )


def _reopen(places: Places, locks: Locks, key: str) -> None:
    """Move a whole model that was damaged back among the unfinished ones, where its pieces are checked."""
    lock = locks.awaited(key, "use")
    if lock is None:
        raise ClusterError(
            f"files of {places.models(key)} were changed while a replica uses them",
            hint="stop the replicas of the model, then fetch it again",
        )
    with lock:
        places.remove(places.partial(key))
        places.partial(key).parent.mkdir(parents=True, exist_ok=True)
        (places.models(key) / BOOT).unlink(missing_ok=True)  # first: the next process checks its pieces
        places.models(key).rename(places.partial(key))
