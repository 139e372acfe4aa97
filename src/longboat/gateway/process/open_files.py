"""Lets a gateway have as many connections as the system allows: the usual limit of 1024 open files is for few."""

from __future__ import annotations

import errno
import os
import resource

from longboat.telemetry import logger

__all__ = ("OpenFilesWatch", "raise_open_files")

log = logger("gateway")

_ENOUGH = 1 << 20
_SAY_EVERY_S = 60.0


def raise_open_files() -> int:
    """Raise this process's limit of open files to the system's hard limit, or to 1,048,576; return the limit in force.

    A relayed request takes two files: the client's connection and the engine's. Service managers and container engines
    often set 1024, which is right only for programs that wait with select(2), and a higher hard limit for the others.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # forbidden, or above what the kernel allows
        return soft
    return wanted


class OpenFilesWatch:
    """Says that no connection is accepted, where the limit is reached: the event loop closes them without a word."""

    def __init__(self) -> None:
        self._said_s: float | None = None

    def look(self, now_s: float) -> None:
        """Try to open one more file; where that fails, log it, at most once a minute."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return
            what = "this process" if error.errno == errno.EMFILE else "the machine"
        if self._said_s is not None and now_s - self._said_s < _SAY_EVERY_S:
            return
        self._said_s = now_s
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        words = "clients are refused: %s has no more open files (limit of this process: %d); raise its hard limit"
        log.error(words, what, limit)
