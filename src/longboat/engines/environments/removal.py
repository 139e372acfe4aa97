"""Removes engine environments, and measures what they take of the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from longboat.core.errors import ClusterError, UserInputError
from longboat.engines.environments.environment import MARKER, engines_folder
from longboat.file_lock import FileLock

__all__ = ("check_unused", "remove", "size_bytes", "users_of")


def remove(name: str, home: Path, *, force: bool = False) -> int:
    """Remove the environment ``name`` with all its files, also one that is unfinished. Return the bytes that it took.

    force: also while processes use it; they keep what they have loaded, and fail at the next import
    Raises UserInputError where there is none of this name, ClusterError where it is in use or being installed.
    """
    folder = engines_folder(home) / name
    if not name or "/" in name or name.startswith(".") or not folder.is_dir():
        known = sorted(path.name for path in engines_folder(home).glob("[!.]*") if path.is_dir())
        hint = f"environments: {', '.join(known)}" if known else "none is installed"
        raise UserInputError(f"there is no engine environment {name!r}", hint=hint)
    if (lock := FileLock.taken(folder.parent / f".{name}.lock")) is None:
        raise ClusterError(f"{name} is being installed", hint="wait until it is finished")
    with lock:
        if not force:
            check_unused(folder)
        taken_bytes = size_bytes(folder)
        (folder / MARKER).unlink(missing_ok=True)  # from here on it counts as unfinished
        shutil.rmtree(folder)
    return taken_bytes


def check_unused(folder: Path) -> None:
    """Raise ClusterError where processes of this machine use the environment."""
    if pids := users_of(folder):
        listed = ", ".join(map(str, pids[:5])) + (" …" if len(pids) > 5 else "")
        hint = "take the models that use it down, or stop the node (longboat node stop); or add --force"
        raise ClusterError(f"{folder.name} is used by {len(pids)} processes (pid {listed})", hint=hint)


def size_bytes(folder: Path) -> int:
    """Return the bytes on disk of all files under ``folder``; a file that has several names there counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(place, name))
                sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def users_of(folder: Path) -> list[int]:
    """Return the processes of this machine that have loaded files of the environment, as far as they are visible."""
    words = f"{folder.resolve()}/".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words in (entry / "maps").read_bytes() or (entry / "cmdline").read_bytes().startswith(words):
                found.append(int(entry.name))
    return sorted(found)
