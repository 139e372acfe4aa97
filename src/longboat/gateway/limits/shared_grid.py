"""A memory-mapped file of numbers that the processes of one node share: for each key, one row of cells per process.

A process writes only its own row and adds up all of them, so nobody waits for anybody. The file's lock is held only to
join, to add a key, and to take a dead process's row away. Cells are aligned 64-bit integers, which processors write and
read whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from longboat.core.errors import ClusterError, UserInputError

__all__ = ("GridFullError", "SharedGrid", "open_grid")

LAYOUT_VERSION = 1
MAX_KEYS = 4096
MAX_ROWS = 256
NUM_TRANSIENT = 2
"""A row's first cells, which mean nothing once its process is dead: what runs there, and its interest in the key."""

_MAGIC = 0x4C42_4752_4944
_HIGH_WATER = 4  # header cell: rows that were ever used
_HEADER = 8  # cells
_CELL_BYTES = 8
_REAP_S = 1.0
_LOCK_DEADLINE_S = 2.0  # it is held for a millisecond or two, by a process that has a processor


class GridFullError(Exception):
    """There is no place for another key."""


class SharedGrid:
    """Joins the file, or makes it. ``path`` None: a grid of this process alone.

    num_cells: of each row, at least 2. Cell 0 is for what runs now; cell 1 is not 0 while this process uses the key.

    :raises OSError: the file cannot be made, read or written
    :raises ClusterError: the node has too many processes, or one of them holds the file's lock for too long
    """

    def __init__(self, path: Path | None, *, num_cells: int) -> None:
        self.num_cells = num_cells
        self._max_rows = MAX_ROWS if path else 1
        self._rows_at = _HEADER
        self._keys_at = self._rows_at + 2 * self._max_rows
        self._blocks_at = self._keys_at + MAX_KEYS
        self.block_cells = self._max_rows * num_cells
        num_total = self._blocks_at + MAX_KEYS * self.block_cells
        self._header = (_MAGIC, LAYOUT_VERSION, num_cells, self._max_rows)
        self._fd = _open_locked(path, num_total * _CELL_BYTES, self._blocks_at * _CELL_BYTES, self._header)
        self.memory = mmap.mmap(self._fd, num_total * _CELL_BYTES)
        self.cells = memoryview(self.memory).cast("q")
        self._bases: dict[str, int] = {}
        self._reaped_s = time.monotonic()
        try:
            self.row = self._join()
        finally:
            self._unlock()

    @property
    def num_rows(self) -> int:
        """Rows that may hold something."""
        return self.cells[_HIGH_WATER]

    def base_of(self, key: str, may_reuse: Callable[[tuple[int, ...]], bool] = lambda _: True) -> int:
        """Index of the key's first cell (row 0); the key is added where it is new.

        may_reuse: whether the cells of a key that no process uses may go to another, when all places are taken

        :raises GridFullError: there is no place for it in the file, or on the disk
        :raises ClusterError: another process holds the file's lock
        """
        base = self._bases.get(key)
        if base is None:
            with self.locked():
                base = self._bases[key] = self._add(_hash(key), may_reuse)
        return base

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the others from joining, from adding keys, and from this. :raises ClusterError: not in 2 s"""
        if self._fd >= 0:
            _lock(self._fd)
        try:
            yield
        finally:
            self._unlock()

    def reap_when_due(self) -> None:
        """Once a second: what runs in processes that died counts no more."""
        now_s = time.monotonic()
        if now_s - self._reaped_s < _REAP_S:
            return
        self._reaped_s = now_s
        if self._fd >= 0 and self._dead_rows():
            with suppress(ClusterError), self.locked():  # whoever holds the lock may be doing the same
                self._reap()

    def close(self) -> None:
        """Leave: what runs here counts no more, the other cells stay."""
        if self._fd < 0 and not self._bases:
            return
        with self.locked():
            self._clear(self.row)
        self.cells.release()
        self.memory.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._bases.clear()

    # under the lock

    def _join(self) -> int:
        self._reap()
        for row in range(self._max_rows):
            at = self._rows_at + 2 * row
            if self.cells[at] == 0:
                self.cells[at + 1] = _started(os.getpid())
                self.cells[at] = os.getpid()
                self.cells[_HIGH_WATER] = max(self.cells[_HIGH_WATER], row + 1)
                return row
        hint = f"run at most {self._max_rows} gateway processes with one state folder"
        raise ClusterError("too many gateway processes share one state folder", hint=hint)

    def _add(self, wanted: int, may_reuse: Callable[[tuple[int, ...]], bool]) -> int:
        keys = self.cells[self._keys_at : self._blocks_at].tolist()
        if wanted in keys:
            index = keys.index(wanted)
        else:
            index = self._fresh(keys.index(0)) if 0 in keys else self._emptied(may_reuse)
            self.cells[self._keys_at + index] = wanted
        base = self._blocks_at + index * self.block_cells
        self.cells[base + self.row * self.num_cells + 1] = 1
        return base

    def _fresh(self, index: int) -> int:
        """Room on the disk for its cells: to write to a mapped page that has none would kill the process."""
        if self._fd >= 0:
            start = (self._blocks_at + index * self.block_cells) * _CELL_BYTES
            try:
                os.posix_fallocate(self._fd, start, self.block_cells * _CELL_BYTES)
            except OSError as error:
                raise GridFullError(str(error)) from error
        return index

    def _emptied(self, may_reuse: Callable[[tuple[int, ...]], bool]) -> int:
        for index in range(MAX_KEYS):
            base = self._blocks_at + index * self.block_cells
            values = tuple(self.cells[base : base + self.num_rows * self.num_cells])
            if not any(values[1 :: self.num_cells]) and may_reuse(values):
                num_bytes = len(values) * _CELL_BYTES
                self.memory[base * _CELL_BYTES : base * _CELL_BYTES + num_bytes] = bytes(num_bytes)
                return index
        raise GridFullError("all places are in use")

    def _reap(self) -> None:
        for row in self._dead_rows():
            self._clear(row)

    def _clear(self, row: int) -> None:
        for index in range(MAX_KEYS):
            if self.cells[self._keys_at + index]:
                own = self._blocks_at + index * self.block_cells + row * self.num_cells
                for cell in range(own, own + NUM_TRANSIENT):
                    self.cells[cell] = 0
        self.cells[self._rows_at + 2 * row] = 0

    def _dead_rows(self) -> list[int]:
        rows = self.cells[self._rows_at : self._rows_at + 2 * self.num_rows].tolist()
        pairs = enumerate(zip(rows[::2], rows[1::2], strict=True))
        return [row for row, (pid, started) in pairs if pid and _started(pid) != started]

    def _unlock(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)


def open_grid(path: Path, *, num_cells: int) -> SharedGrid:
    """The grid in a file, whose folder is made where it is missing.

    :raises UserInputError: the folder cannot be used
    :raises ClusterError: too many processes use it, or one of them hangs
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SharedGrid(path, num_cells=num_cells)
    except OSError as error:
        hint = "name a folder of this machine's disk that this user can write, with a few MiB of room"
        raise UserInputError(f"the state folder {path.parent} cannot be used: {error.strerror}", hint=hint) from error


def _open_locked(path: Path | None, num_bytes: int, head_bytes: int, header: tuple[int, ...]) -> int:
    """The file, locked and with a good header; one that has another layout, or is no grid, is replaced."""
    if path is None:
        return -1
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(fd)
            if not _is_still_at(path, fd):
                os.close(fd)
                continue
            if os.fstat(fd).st_size == 0:
                os.posix_fallocate(fd, 0, head_bytes)
                os.ftruncate(fd, num_bytes)
                os.pwrite(fd, struct.pack(f"@{len(header)}q", *header), 0)
            packed = os.pread(fd, len(header) * _CELL_BYTES, 0)
            if os.fstat(fd).st_size == num_bytes and packed == struct.pack(f"@{len(header)}q", *header):
                return fd
            os.unlink(path)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_still_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _lock(fd: int) -> None:
    deadline_s = time.monotonic() + _LOCK_DEADLINE_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                hint = "another gateway process hangs: look for one that is stopped, and end it"
                raise ClusterError("the gateways' shared counters stay locked", hint=hint) from None
            time.sleep(0.0005)


def _hash(key: str) -> int:
    """Not 0, the same in all processes."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def _started(pid: int) -> int:
    """When a process was started, in a number that no other process of this pid has; 0 where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    fields = stat[stat.rindex(b")") + 2 :].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19]) ^ _boot()


def _boot() -> int:
    """A number of this boot of the machine, 62 bits."""
    global _BOOT
    if not _BOOT:
        try:
            text = Path("/proc/sys/kernel/random/boot_id").read_text()
        except OSError:
            text = "unknown"
        _BOOT = abs(_hash(text)) >> 1 | 1
    return _BOOT


_BOOT = 0
