"""Keeps each adapter's contents on the node, under their revision: what an engine reads again never changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from longboat.catalog.read_adapter import adapter_revision
from longboat.catalog.readers.adapter import ADAPTER_FILES
from longboat.core.errors import UserInputError
from longboat.disk_sync import sync

__all__ = ("adapters_folder", "stage_adapter")


def adapters_folder(home: Path) -> Path:
    """Return the folder of the node's copies, each below its revision."""
    return home / "adapters"


def stage_adapter(source: Path, revision: str, home: Path) -> str:
    """Return the folder of these contents on this node; they are copied from ``source`` where it has none yet.

    Raises UserInputError where ``source`` holds something else, or cannot be read.
    """
    kept = adapters_folder(home) / revision
    if kept.is_dir():
        return str(kept)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".") as folder:
        copy = Path(folder) / revision
        copy.mkdir()
        try:
            for name in ADAPTER_FILES:
                shutil.copyfile(source / name, copy / name)
            found = adapter_revision(copy)
            for path in (*copy.iterdir(), copy):  # a power cut leaves all of it, or no folder of this name
                sync(path)
        except OSError as error:
            what = f"{error.filename or source} cannot be copied to {kept.parent}: {error.strerror}"
            raise UserInputError(what, hint="put the adapter's folder on every node") from error
        if found != revision:
            what = f"{source} holds revision {found}, and {revision} was asked for"
            raise UserInputError(what, hint="put the same files on every node, and add the adapter again")
        with contextlib.suppress(OSError):  # another replica was faster
            os.rename(copy, kept)
    return str(kept)
