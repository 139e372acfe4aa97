"""Finds and ends the processes that Ray runs for one node; the node's gateway and engines are not among them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from longboat.core.errors import ClusterError
from longboat.processes import all_pids

__all__ = ("child_named", "end_processes_of_ray", "processes_of_ray")

_END_DEADLINE_S = 10.0
_DRIVER_LOG = "/python-core-driver-"


def processes_of_ray(temp_dir: str, session: int) -> list[int]:
    """Return raylet, workers, agents and the rest: their command lines name Ray's folder, or they write to it.

    session: the (POSIX) session that all of them are in, which the node's runner led when it started them. Programs of
    users are in other sessions: ``longboat up`` writes to Ray's folder as well, and collectors of logs read there.
    What Ray's workers start (daemons, gateways, zygotes) inherits none of their files and keeps logs of its own.
    Environment marks cannot be used: Ray's processes write their titles over the environment that /proc shows.
    """
    prefix = f"{temp_dir}/session_"
    return [pid for pid in all_pids() if pid != os.getpid() and _is_of_node(pid, prefix, session)]


def _is_of_node(pid: int, prefix: str, session: int) -> bool:
    folder = Path(f"/proc/{pid}")
    try:
        is_named = prefix.encode() in (folder / "cmdline").read_bytes()
        opened = {fd.name: path for fd in (folder / "fd").iterdir() if (path := _target(fd)).startswith(prefix)}
        if not (is_named or opened):
            return False
        if os.getsid(pid) == session > 0:
            return True
        is_driver = any(_DRIVER_LOG in path for path in opened.values())
        return not is_driver and any(_is_writable(folder / "fdinfo" / fd) for fd in opened)
    except OSError:
        return False


def _is_writable(info: Path) -> bool:
    """Return whether an open file can be written to. info: its entry below ``fdinfo``"""
    flags = next(line for line in info.read_text().splitlines() if line.startswith("flags:"))
    return int(flags.partition(":")[2], 8) & os.O_ACCMODE != os.O_RDONLY


def _target(opened: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(opened)
    return ""


def end_processes_of_ray(temp_dir: str, session: int) -> list[int]:
    """Kill all of Ray's processes of this node; return their pids. Raises ClusterError when some do not die."""
    ended: set[int] = set()
    end_s = time.monotonic() + _END_DEADLINE_S
    while found := processes_of_ray(temp_dir, session):
        if time.monotonic() > end_s:
            raise ClusterError(f"processes of Ray do not die: {found}", hint="look for them with ps")
        ended.update(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return sorted(ended)


def child_named(parent: int, name: str) -> int | None:
    """Return the pid of a living child of ``parent`` that runs the program ``name``."""
    for pid in all_pids():
        try:
            head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            continue
        state, its_parent = tail.split()[:2]
        if int(its_parent) == parent and head.partition("(")[2] == name and state != "Z":
            return pid
    return None
