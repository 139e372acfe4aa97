"""Memory and CPU time of a process and all its descendants, read from /proc."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

__all__ = ("TICKS_PER_S", "Usage", "group_usage", "process_tree", "stat_fields", "thread_states")

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LARGEST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """rss_bytes counts shared pages once per process: an upper bound for forked ones."""

    rss_bytes: int
    cpu_s: float


def group_usage(root_pid: int) -> Usage:
    """Sum over ``root_pid`` and its descendants; processes that end meanwhile count as nothing."""
    rss_bytes = ticks = 0
    for pid in process_tree(root_pid):
        with contextlib.suppress(OSError):
            stat = stat_fields(pid)
            ticks += int(stat[11]) + int(stat[12])
            rss_bytes += int(stat[21]) * PAGE_BYTES
    return Usage(rss_bytes=rss_bytes, cpu_s=ticks / TICKS_PER_S)


def stat_fields(pid: int) -> list[str]:
    """Return the fields of a process's ``stat`` from its state on. Raises OSError when it is gone."""
    return _fields(f"/proc/{pid}/stat")


def thread_states(pid: int) -> list[str]:
    """Return the state of each thread of a process, as ``R`` or ``S``. Raises OSError when one of them is gone."""
    return [_fields(f"/proc/{pid}/task/{thread}/stat")[0] for thread in os.listdir(f"/proc/{pid}/task")]


def _children_of(pid: int) -> list[int]:
    """Processes that any thread of ``pid`` started. Raises OSError when it is gone."""
    children: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        children.extend(map(int, _read(f"/proc/{pid}/task/{thread}/children").split()))
    return children


def _fields(path: str) -> list[str]:
    return _read(path).decode(errors="replace").rpartition(")")[2].split()


def _read(path: str) -> bytes:
    """Read a small file of /proc: supervisors do it many times a second, so with as few system calls as it takes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LARGEST_BYTES)
    finally:
        os.close(descriptor)


def process_tree(root_pid: int) -> list[int]:
    """Return ``root_pid`` and its descendants."""
    found, pending = [], [root_pid]
    while pending:
        pid = pending.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            pending.extend(_children_of(pid))
    return found
