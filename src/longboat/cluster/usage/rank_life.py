"""Whether a rank's processes run, are stopped or have ended, and what CPU time they took: read from /proc."""

from __future__ import annotations

import time

from longboat.cluster.usage.proc_usage import TICKS_PER_S, process_tree, stat_fields, thread_states
from longboat.routing.health.liveness import Life

__all__ = ("RankLife",)

_LOOK_CLOSER_EVERY = 8
"""Readings. Engines have hundreds of threads, each of which must be asked for its children and its state."""

_STOPPED = ("T", "t")
_MAX_READING_S = 0.5


class RankLife:
    """One rank, by its main process. Cheap enough to be read several times a second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pids: list[int] = [pid]
        self._readings = 0
        self._waited_s = 0.0
        self._read_s = time.monotonic()

    def read(self) -> tuple[Life, float]:
        """Return what the rank's processes do, and the CPU seconds that they used or waited for. A zombie has ended.

        A process that could run now is taken to have wanted a CPU since the last reading. Of its other threads, which
        may be those that work, the same is asked now and then.
        """
        wants_cpu = False
        if self._readings % _LOOK_CLOSER_EVERY == 0:
            self._pids = process_tree(self._pid)
            wants_cpu = any(map(_has_thread_that_could_run, self._pids))
        self._readings += 1
        states, ticks = {}, 0
        for pid in self._pids:
            try:
                fields = stat_fields(pid)
            except OSError:
                continue
            states[pid] = fields[0]
            ticks += int(fields[11]) + int(fields[12])
        now_s = time.monotonic()
        if wants_cpu or "R" in states.values():
            self._waited_s += min(now_s - self._read_s, _MAX_READING_S)
        self._read_s = now_s
        return _life(states, self._pid), ticks / TICKS_PER_S + self._waited_s


def _life(states: dict[int, str], main_pid: int) -> Life:
    if states.get(main_pid, "X") in ("Z", "X", "x"):
        return Life.ENDED
    return Life.STOPPED if any(state in _STOPPED for state in states.values()) else Life.RUNS


def _has_thread_that_could_run(pid: int) -> bool:
    try:
        return "R" in thread_states(pid)
    except OSError:  # threads come and go
        return False
