"""The access log: one JSON line a request, without a word of the prompt or the response."""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import stat
import threading
from contextlib import suppress
from typing import Final

import orjson

from longboat.gateway.native.leaf_work import json_line
from longboat.gateway.records.recent import Record

__all__ = ("AccessLog", "RotatingFile", "access_line")

_json_line: Final = json_line  # what is imported from C, compiled code would look up by its name each time
_FLUSH_BYTES: Final = 256 * 1024  # each block makes the loop wait for the thread's turns in the interpreter
_MAX_PENDING_BYTES: Final = 8 * 1024 * 1024
_CLOSE_TIMEOUT_S: Final = 2.0
_KEYS: Final = tuple(
    b'"%b":' % name
    for name in (
        b"time id tenant path model pool replica status outcome bytes ttft_ms queue_ms total_ms"
        b" prompt_tokens completion_tokens cached_tokens retries error"
    ).split()
)


class RotatingFile:
    """A file to which several processes append whole blocks, and which any of them may rotate.

    At ``max_bytes`` the file is renamed to PATH.1, PATH.1 to PATH.2, and so on up to ``keep``; older files are removed.
    A process whose file was renamed opens the new one at its next block. With ``keep`` 0, blocks that others write
    during a rotation are lost; otherwise none are. Only a regular file is ever renamed.

    Raises OSError where the file cannot be opened for appending.
    """

    def __init__(self, path: str, *, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._torn = False
        self._file = _open(path)
        self._opened = os.fstat(self._file)  # by which the file is known again
        self._regular = stat.S_ISREG(self._opened.st_mode)

    def append(self, block: bytes) -> None:
        """Append a block. Raise OSError where the disk did not take all of it."""
        size = self._follow() if self._regular else 0
        self._write(b"\n" + block if self._torn else block)
        if self._regular and size + len(block) >= self._max_bytes:
            self._rotate()

    def close(self) -> None:
        os.close(self._file)

    def _write(self, block: bytes) -> None:
        written = os.write(self._file, block)
        if written:
            self._torn = not block.endswith(b"\n", 0, written)
        if written < len(block):
            raise OSError(errno.ENOSPC, "the disk took a part of the block only")

    def _follow(self) -> int:
        """Open the path again where it names another file now. Return the size of the file."""
        found = self._current()
        if found is None:
            fresh = _open(self._path)
            os.close(self._file)
            self._file = fresh
            found = self._opened = os.fstat(fresh)
        return found.st_size

    def _current(self) -> os.stat_result | None:
        """Return what the system says of the file; None where the path names another one."""
        with suppress(FileNotFoundError):
            found = os.stat(self._path)
            if os.path.samestat(found, self._opened):
                return found
        return None

    def _rotate(self) -> None:
        """Rename the files, under a lock on the full file: only one of the processes that have it open renames it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another process renames it, or the file system has no locks
        try:
            if self._current() is not None:
                self._shift()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._follow()

    def _shift(self) -> None:
        number = max(self._keep, 1)
        while _remove(f"{self._path}.{number}"):  # more than one where ``keep`` was lowered
            number += 1
        for number in range(self._keep - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.rename(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        if self._keep:
            os.rename(self._path, f"{self._path}.1")
        else:
            os.unlink(self._path)


class AccessLog:
    """Collects lines and passes them in whole blocks to a thread that writes: a slow disk never holds up the loop.

    Lines that the disk does not take in time are dropped and counted: a full disk must not stop the gateway.

    Raises OSError where the file cannot be opened for appending.
    """

    def __init__(self, path: str, *, max_bytes: int = 256 * 1024 * 1024, keep: int = 4) -> None:
        self._file = RotatingFile(path, max_bytes=max_bytes, keep=keep)
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self._handed_bytes = self._taken_bytes = 0  # the loop's counter and the thread's
        self._dropped_here = self._dropped_there = 0
        self._blocks: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_blocks, name="access-log", daemon=True)
        self._writer.start()

    @property
    def num_dropped(self) -> int:
        """The number of lines that are not in the file."""
        return self._dropped_here + self._dropped_there

    def write(self, document: dict[str, object]) -> None:
        self.write_lines([orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)])

    def write_lines(self, lines: list[bytes]) -> None:
        """Add lines, each with its line end."""
        self._lines += lines
        self._num_bytes += sum(map(len, lines))
        if self._num_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass the collected lines to the thread. Called five times a second."""
        if not self._lines:
            return
        lines, self._lines, self._num_bytes = self._lines, [], 0
        if self._handed_bytes - self._taken_bytes > _MAX_PENDING_BYTES:
            self._dropped_here += len(lines)
            return
        block = b"".join(lines)
        self._handed_bytes += len(block)
        self._blocks.put((block, len(lines)))

    def close(self) -> None:
        """Write what is left, for at most two seconds."""
        self.flush()
        self._blocks.put(None)
        self._writer.join(_CLOSE_TIMEOUT_S)

    def _write_blocks(self) -> None:
        while (item := self._blocks.get()) is not None:
            block, num_lines = item
            try:
                self._file.append(block)
            except OSError:
                self._dropped_there += num_lines
            self._taken_bytes += len(block)
        self._file.close()


def access_line(record: Record) -> bytes:
    """Write the line of a finished request.

    ``time`` is when it ended, in Unix seconds; None is unknown; the error's code is left out where there was none.
    """
    (
        request_id, tenant, path, model, pool, _, received_unix_s, _, queued_s, granted_s, attempts, first_byte_s,
        ended_s, status, outcome, code, bytes_out, prompt_tokens, completion_tokens, cached_tokens, _, _,
    ) = record  # fmt: skip
    values = (
        received_unix_s + ended_s,
        request_id,
        tenant,
        path,
        model,
        pool,
        attempts[-1].replica if attempts else "",
        status,
        outcome,
        bytes_out,
        None if first_byte_s is None else first_byte_s * 1e3,
        0 if queued_s is None else ((granted_s or ended_s) - queued_s) * 1e3,
        ended_s * 1e3,
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        len(attempts) - 1 if attempts else 0,
    )
    return _json_line(_KEYS, (*values, code) if code else values)


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
