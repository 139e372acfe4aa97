"""Bounds for the logs of a node: no file and no folder of logs grows without end.

A log is rotated by copying it and cutting it to nothing: every writer appends (``O_APPEND``), so none of them has to
open its file again. Lines that are written between the copy and the cut are lost, which takes milliseconds.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from longboat.cluster.host.record import load_record
from longboat.folders import open_files
from longboat.telemetry import logger

__all__ = ("CHECK_EVERY_S", "LogFolder", "bound_logs", "previous_of", "surplus")

log = logger("logs")

CHECK_EVERY_S = 60.0
ROTATED = ("logs/*.log", "logs/*/*/rank*.log", "zygotes/*.log", "gateway/gateway.log")
MOST_FILE_BYTES = 64 << 20
"""A log that is larger becomes ``NAME.1``, in place of the one before."""
MOST_BYTES = 4 << 30
"""Most that the logs of all replicas take on a node; see ``surplus``."""
YOUNG_S = 3600.0
"""Logs that were written to within this time stay, whatever they take."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
OF_PROCESSES = ("worker-*", "python-core-*", "serve/*")
"""Files that Ray makes for each worker, and for each command that connects to it."""
MOST_OF_PROCESSES = 2000


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The logs of one replica: their bytes, and when something was last written (seconds since 1970)."""

    path: Path
    num_bytes: int
    written_s: float


def bound_logs(run: Path, now_s: float) -> None:
    """Rotate what is too large, and remove the oldest replicas' logs where all of them take too much.

    run: the node's run folder; now_s: seconds since 1970. A file that cannot be rotated is left as it is.
    """
    for path in (path for pattern in ROTATED for path in run.glob(pattern)):
        try:
            if path.stat().st_size > MOST_FILE_BYTES:
                _rotate(path)
        except OSError as error:  # a full disk must not end what watches over it
            log.warning("%s cannot be rotated: %s", path, error)
    if too_many := surplus(_replica_folders(run), now_s):
        in_use = {path.parent for path in open_files()}
        for folder in too_many:
            if folder.path.resolve() not in in_use:
                shutil.rmtree(folder.path, ignore_errors=True)
                log.info("removed %s: the logs of this node took more than %d bytes", folder.path, MOST_BYTES)
    _forget_processes(run, now_s)


def surplus(folders: Iterable[LogFolder], now_s: float) -> list[LogFolder]:
    """Return the oldest folders, without which the others keep within ``MOST_BYTES``; none that is young."""
    removed, room = [], MOST_BYTES
    for folder in sorted(folders, key=lambda folder: folder.written_s, reverse=True):
        room -= folder.num_bytes
        if room < 0 and now_s - folder.written_s > YOUNG_S:
            removed.append(folder)
    return removed


def _forget_processes(run: Path, now_s: float) -> None:
    """Remove the oldest logs of processes of Ray that ended; Ray itself keeps them all."""
    record = load_record(run)
    folder = (Path(record.temp_dir) if record is not None else run / "ray").resolve()
    sessions = [path for path in folder.glob("session_*") if not path.is_symlink()]
    found = [path for session in sessions for pattern in OF_PROCESSES for path in session.glob(f"logs/{pattern}")]
    if len(found) <= MOST_OF_PROCESSES:
        return
    in_use = set(open_files())
    for path in sorted(found, key=lambda path: path.stat().st_mtime)[:-MOST_OF_PROCESSES]:
        if path not in in_use and now_s - path.stat().st_mtime > YOUNG_S and path.is_file():
            path.unlink(missing_ok=True)


def previous_of(path: Path) -> Path:
    """Return the file that holds what a log held before it was rotated."""
    return path.with_name(path.name + ".1")


def _rotate(path: Path) -> None:
    """Raises OSError. Where the copy cannot be written whole, the log stays as it is.

    On a full disk, the copy takes the room of the one before: a log that is never cut would take the rest of the disk.
    """
    draft = path.with_name(f"{path.name}.draft")
    try:
        try:
            shutil.copyfile(path, draft)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            previous_of(path).unlink(missing_ok=True)
            shutil.copyfile(path, draft)
        draft.replace(previous_of(path))
    finally:
        draft.unlink(missing_ok=True)
    os.truncate(path, 0)


def _replica_folders(run: Path) -> list[LogFolder]:
    found = []
    for path in run.glob("logs/*/*/"):
        stats = [file.stat() for file in path.iterdir() if file.is_file()]
        written_s = max((stat.st_mtime for stat in stats), default=path.stat().st_mtime)
        found.append(LogFolder(path, sum(stat.st_size for stat in stats), written_s))
    return found
