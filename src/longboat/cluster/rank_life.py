"""Whether a rank's processes run, are stopped or have ended, and what CPU time they used: read from /proc."""

from __future__ import annotations

from pathlib import Path

from longboat.cluster.proc_usage import TICKS_PER_S, children_of
from longboat.routing.liveness import Life

__all__ = ("RankLife",)

_LOOK_FOR_CHILDREN_EVERY = 8
"""Readings. Engines have hundreds of threads, each of which must be asked for its children."""

_STOPPED = ("T", "t")


class RankLife:
    """One rank, by its main process. Cheap enough to be read several times a second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pids: list[int] = [pid]
        self._readings = 0

    def read(self) -> tuple[Life, float]:
        """What the rank's processes do, and their CPU time in seconds. A zombie has ended."""
        if self._readings % _LOOK_FOR_CHILDREN_EVERY == 0:
            self._pids = _tree(self._pid)
        self._readings += 1
        states, ticks = {}, 0
        for pid in self._pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            states[pid] = fields[0]
            ticks += int(fields[11]) + int(fields[12])
        return _life(states, self._pid), ticks / TICKS_PER_S


def _life(states: dict[int, str], main_pid: int) -> Life:
    if states.get(main_pid, "X") in ("Z", "X", "x"):
        return Life.ENDED
    return Life.STOPPED if any(state in _STOPPED for state in states.values()) else Life.RUNS


def _tree(root_pid: int) -> list[int]:
    found, pending = [], [root_pid]
    while pending:
        pid = pending.pop()
        found.append(pid)
        try:
            pending.extend(children_of(pid))
        except OSError:
            continue
    return found
