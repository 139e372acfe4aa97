"""Sign-ins that failed lately, by the client's address, so that keys cannot be guessed quickly."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from functools import cached_property
from pathlib import Path

__all__ = ("Failures",)

_FAILURES_A_MINUTE = 10
_MAX_SOURCES = 4096
_PLACE = struct.Struct("<QdQ")
"""An address (of its digest), when its first failure was, and how many there were since then."""
_BYTES = _MAX_SOURCES * _PLACE.size


class Failures:
    """One table for all processes of a node: an address has no more tries where there are more processes.

    Each address has one place in it, which it shares with those of the same remainder: the newest one has it.
    """

    def __init__(self, path: Path | None, secret: bytes) -> None:
        """path: the table's file; None: this process has its own. secret: so that no client can choose its place"""
        self._path = path
        self._secret = secret

    def pause_s(self, source: str, now_s: float) -> int:
        """Return the seconds until the address may try again; 0: now."""
        _, began_s, count = self._read(source, now_s)
        return max(1, round(began_s + 60.0 - now_s)) if count >= _FAILURES_A_MINUTE else 0

    def note(self, source: str, now_s: float) -> None:
        """Count a failure."""
        address, began_s, count = self._read(source, now_s)
        _PLACE.pack_into(self._table, _offset(address), address, began_s, count + 1)

    def _read(self, source: str, now_s: float) -> tuple[int, float, int]:
        """Return the address, and its failures of the last minute. A clock that went back forgets them."""
        address = int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8, key=self._secret[:64]).digest())
        found, began_s, count = _PLACE.unpack_from(self._table, _offset(address))
        is_lately = found == address and 0 <= now_s - began_s < 60.0
        return (address, began_s, count) if is_lately else (address, now_s, 0)

    @cached_property
    def _table(self) -> mmap.mmap:
        if self._path is None:
            return mmap.mmap(-1, _BYTES)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return mmap.mmap(-1, _BYTES)
        try:
            os.posix_fallocate(descriptor, 0, _BYTES)  # a page that finds no room later would end the process
            return mmap.mmap(descriptor, _BYTES)
        except OSError:
            return mmap.mmap(-1, _BYTES)
        finally:
            os.close(descriptor)


def _offset(address: int) -> int:
    return address % _MAX_SOURCES * _PLACE.size
