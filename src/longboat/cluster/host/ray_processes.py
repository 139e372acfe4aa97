"""Finds and ends the processes that Ray runs for one node; the node's gateway and engines are not among them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from longboat.core.errors import ClusterError

__all__ = ("all_pids", "child_named", "end_processes_of_ray", "processes_of_ray")

_END_DEADLINE_S = 10.0


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def processes_of_ray(temp_dir: str) -> list[int]:
    """Raylet, workers, agents and the rest, told by Ray's folder: it is in their command lines or they write to it.

    What Ray's workers start (keepers, gateways, zygotes) inherits none of their files and keeps logs of its own.
    Environment marks do not tell: Ray's processes write their titles over the environment that /proc shows.
    """
    session = f"{temp_dir}/session_"
    return [pid for pid in all_pids() if pid != os.getpid() and _is_of_session(pid, session)]


def _is_of_session(pid: int, session: str) -> bool:
    folder = Path(f"/proc/{pid}")
    try:
        if session.encode() in (folder / "cmdline").read_bytes():
            return True
        return any(_leads_into(opened, session) for opened in (folder / "fd").iterdir())
    except OSError:
        return False


def _leads_into(opened: Path, prefix: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(opened).startswith(prefix)
    return False


def end_processes_of_ray(temp_dir: str) -> list[int]:
    """SIGKILL them all; their pids. Raises ClusterError when some do not die."""
    ended: set[int] = set()
    end_s = time.monotonic() + _END_DEADLINE_S
    while found := processes_of_ray(temp_dir):
        if time.monotonic() > end_s:
            raise ClusterError(f"processes of Ray do not die: {found}", hint="look for them with ps")
        ended.update(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return sorted(ended)


def child_named(parent: int, name: str) -> int | None:
    """Pid of a living child of ``parent`` that runs the program ``name``."""
    for pid in all_pids():
        try:
            head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            continue
        state, its_parent = tail.split()[:2]
        if int(its_parent) == parent and head.partition("(")[2] == name and state != "Z":
            return pid
    return None
