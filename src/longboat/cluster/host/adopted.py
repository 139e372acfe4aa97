"""A node whose runner was killed: finds what is left of it, and has another runner take it over.

The process that runs ``ray start`` watches its parent, the runner, as the runner watches it. Ray's own processes end
with the former. Where both are killed, the node is down, and its record says how it comes back (``standing``).
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from longboat.cluster.host.ray_processes import child_named
from longboat.cluster.host.record import ClusterRecord, load_record
from longboat.processes import all_pids, born_ticks

__all__ = ("AdoptedRay", "adopt", "ray_here", "spawn_runner", "watch_parent")

_RUNNER = "longboat.cluster.host.runner"
_START = "longboat.cluster.host.ray_start"
_DETACH = '"$@" >>"$LOG" 2>&1 </dev/null & '
_ADOPTION_S, _LOOK_EVERY_S = 60.0, 0.2


@dataclass(frozen=True, slots=True)
class AdoptedRay:
    """Ray's processes on this node, which another runner started.

    pids: those without which the node is none, with the start time of each
    """

    starter: int  # that runs ``ray start``
    raylet: int
    pids: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return all(born_ticks(pid) == born for pid, born in self.pids.items())


def ray_here(record: ClusterRecord) -> AdoptedRay | None:
    """Find Ray as it runs for the node; None where one of its processes is gone that it cannot do without."""
    found = {kind: pid for pid in all_pids() if (kind := _kind(pid, record.temp_dir))}
    needed = ("starter", "raylet", "gcs_server") if record.role == "head" else ("starter", "raylet")
    if any(kind not in found for kind in needed):
        return None
    return AdoptedRay(found["starter"], found["raylet"], {pid: born_ticks(pid) for pid in found.values()})


def _kind(pid: int, temp_dir: str) -> str:
    """``raylet`` | ``gcs_server`` | ``starter``, for processes with Ray's folder in their command line; else empty."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    name = os.path.basename(words[0])
    if name in ("raylet", "gcs_server"):
        return name if any(temp_dir + "/session_" in word for word in words) and born_ticks(pid) else ""
    if _START not in words or temp_dir not in words:
        return ""
    is_waiting = "--standby" in words and child_named(pid, "raylet") is None  # one that was taken keeps the word
    return "" if is_waiting else "starter"


def spawn_runner(run: Path, env: Mapping[str, str]) -> None:
    """Start a runner that adopts the node and outlives its parent: the children of a Ray worker end with it."""
    log = run / "logs" / "node.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", sys.executable, "-m", _RUNNER, str(run), "--adopt"],
        env={**{name: value for name, value in env.items() if name != "RAY_ADDRESS"}, "LOG": str(log)},
        cwd="/",
        start_new_session=True,
        check=False,
    )


def adopt(run: Path, env: Mapping[str, str]) -> bool:
    """Have another runner keep the node; return False where one does, or the node was stopped on purpose."""
    record = load_record(run)
    if record is None or record.is_kept or record.is_ended or record.phase == "failed":
        return False
    spawn_runner(run, env)
    return True


def watch_parent(run: Path, env: Mapping[str, str]) -> None:
    """Adopt the node when the parent of this process, its runner, or a later one ends before it.

    It costs nothing until then.
    """
    threading.Thread(target=_adopt_always, args=(os.getppid(), run, dict(env)), daemon=True).start()


def _adopt_always(runner: int, run: Path, env: Mapping[str, str]) -> None:
    while runner:
        with contextlib.suppress(OSError):
            watched = os.pidfd_open(runner)
            select.select([watched], [], [])
            os.close(watched)
        adopt(run, env)
        runner = _next_runner(run)


def _next_runner(run: Path) -> int:
    """Wait for the runner that adopts the node, and return its pid; 0 where none is to come."""
    end_s = time.monotonic() + _ADOPTION_S
    while time.monotonic() < end_s:
        record = load_record(run)
        if record is None or record.is_ended:
            return 0
        if record.is_kept:
            return record.runner_pid
        time.sleep(_LOOK_EVERY_S)
    return 0
