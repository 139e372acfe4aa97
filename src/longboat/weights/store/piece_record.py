"""The record of a model's pieces: 32 bytes for each, its SHA-256, or zeros while it is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ("HASH_BYTES", "PieceRecord", "write_at")

HASH_BYTES: Final = 32
MISSING: Final = bytes(HASH_BYTES)


class PieceRecord:
    """The hashes of the pieces that are there, in memory and in a file that several processes share."""

    def __init__(self, path: Path, num_pieces: int) -> None:
        self._path = path
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raw = b""
        raw = raw.ljust(num_pieces * HASH_BYTES, b"\0")
        self._hashes = [raw[index * HASH_BYTES : (index + 1) * HASH_BYTES] for index in range(num_pieces)]

    def __getitem__(self, index: int) -> bytes:
        return self._hashes[index]

    @property
    def is_whole(self) -> bool:
        """Whether no piece is missing."""
        return MISSING not in self._hashes

    def present(self) -> dict[int, bytes]:
        """Return the hash of each piece that is there."""
        return {index: value for index, value in enumerate(self._hashes) if value != MISSING}

    def has(self, index: int) -> bool:
        """Return whether a piece is there, also where another process has fetched it meanwhile."""
        if self._hashes[index] == MISSING:
            self._hashes[index] = self._on_disk(index)
        return self._hashes[index] != MISSING

    def is_on_disk(self, index: int) -> bool:
        """Return whether the file has a piece: another process may have forgotten it."""
        return self._on_disk(index) != MISSING

    def note(self, index: int, sha256: bytes) -> None:
        """Write that a piece is there. Raises OSError where the disk is full or fails."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_at(descriptor, sha256, index * HASH_BYTES)
        finally:
            os.close(descriptor)
        self._hashes[index] = sha256

    def forget(self, indexes: Iterable[int]) -> None:
        """Write that pieces are missing. Raises OSError where the disk fails."""
        for index in indexes:
            self.note(index, MISSING)

    def _on_disk(self, index: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(index * HASH_BYTES)
                return file.read(HASH_BYTES).ljust(HASH_BYTES, b"\0")
        except OSError:
            return MISSING


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of ``data`` at a place of a file."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
