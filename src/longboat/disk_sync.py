"""Writes files so that readers find the old content or the new one, and a power cut loses neither."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ("sync", "whole_file", "write_whole")


def write_whole(path: Path, content: bytes | str, *, mode: int | None = None, synced: bool = False) -> None:
    """Write a file as ``whole_file`` does."""
    with whole_file(path, mode=mode, synced=synced) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int | None = None, synced: bool = False) -> Iterator[BinaryIO]:
    """Open a draft that takes the place of ``path`` at the end of the block, and is removed where the block fails.

    mode: permissions of the file; None: as the umask says; synced: on the disk before it takes the place
    """
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # also what the umask takes
            yield file
            if synced:
                file.flush()
                os.fsync(descriptor)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
