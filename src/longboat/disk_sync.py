"""Writes files and the names in folders to the disk, so that a power cut does not lose them."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ("sync",)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
