"""The progress of a fetch under way, for other processes to read."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from longboat.disk_sync import write_whole
from longboat.weights.pieces.rate import Progress

__all__ = ("ProgressFile",)

FRESH_S: Final = 10.0
"""Progress that was written longer ago than this belongs to a fetch that was cut."""


class ProgressFile:
    """The file in a model's folder until all of the model is there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "progress.json"

    def write(self, progress: Progress) -> None:
        """Write the progress; a full disk has its own error, where pieces are written."""
        with contextlib.suppress(OSError):
            write_whole(self._path, msgspec.json.encode(progress))

    def read(self) -> Progress | None:
        """Return the progress; None where no process fetches the model."""
        try:
            if time.time() - self._path.stat().st_mtime > FRESH_S:
                return None
            return msgspec.json.decode(self._path.read_bytes(), type=Progress)
        except (OSError, msgspec.DecodeError):
            return None

    def remove(self) -> None:
        """Remove the file: all of the model is there."""
        self._path.unlink(missing_ok=True)
