"""Keeps a node in its cluster: runs Ray in the foreground, and starts it again when it ended by itself.

usage: python -m longboat.cluster.host.runner RUN_FOLDER [--adopt]

The node's record says how Ray is started. The runner reads it once its own input has ended: the command that starts the
runner writes it until then. With ``--adopt`` Ray may run already, because its runner was killed.

Ray ends a node that was cut off when its link returns, since the cluster has declared it dead. What engines are left on
the node then belong to no runner: they are ended before the node joins again.

A full disk ends no node: output that finds no room is lost, and the record is written when there is room again.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from longboat.cluster.host.adopted import AdoptedRay, ray_here
from longboat.cluster.host.ray_processes import child_named, end_processes_of_ray
from longboat.cluster.host.ray_start import NextStart, can_connect
from longboat.cluster.host.record import ClusterRecord, load_record, save_record
from longboat.core.errors import ClusterError
from longboat.engines.launch.keeper_command import keeper_argv
from longboat.file_lock import FileLock
from longboat.processes import all_pids, born_ticks, environment_of

__all__ = ("backoff_s", "is_final", "last_words", "main")

_UP = "Ray runtime started."
_TOO_SLOW = "timed out during startup"
_MAX_SLOW_STARTS = 3
_POLL_S = 0.2
_GRACE_S = 10.0
_STEADY_S = 30.0
_MAX_BACKOFF_S = 30.0
_REAP_DEADLINE_S = 30.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG_HEAD = re.compile(r"^\[?\d{4}-\d\d-\d\d \S+\s+(?:\w+ )?(?:[\w.]+:\d+ -- )?")


def backoff_s(num_failures: int) -> float:
    """Pause before the start after this many failures in a row: 0, 1, 2, 4 … 30 s."""
    return min(_MAX_BACKOFF_S, 2.0 ** (num_failures - 1)) if num_failures else 0.0


def is_final(words: str, num_failures: int) -> bool:
    """Return whether a node that was never up should give up: on a very busy machine a slow start is tried again."""
    return num_failures >= _MAX_SLOW_STARTS or _TOO_SLOW not in words


def last_words(lines: Sequence[str]) -> str:
    """Return the line of Ray's output that best says why it ended: the last error, else the last line."""
    plain = [_LOG_HEAD.sub("", _COLOUR.sub("", line)).strip() for line in lines]
    told = [line for line in plain if line]
    errors = [line for line in told if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or told or [""])[-1]


@dataclass(slots=True)
class _Run:
    """One life of ``ray start``."""

    process: subprocess.Popen[str]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    is_up: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """Follow Ray's output in a thread."""
        threading.Thread(target=self.read, daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    @property
    def raylet(self) -> int:
        """Its pid; 0: not found."""
        return child_named(self.process.pid, "raylet") or 0

    def end(self, *, gently: bool) -> None:
        """End ``ray start`` and with it the processes of Ray."""
        if gently and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        time.sleep(_POLL_S)  # the reader takes in the last lines

    def read(self) -> None:
        """Copy Ray's output to the runner's own until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if _UP in line:
                self.is_up.set()
            _say(line)


class _AdoptedRun:
    """The rest of a life that another runner began."""

    def __init__(self, ray: AdoptedRay) -> None:
        self._ray = ray
        self.lines: deque[str] = deque()
        self.is_up = threading.Event()
        self.is_up.set()

    def begin(self) -> None:
        """Ray's output was the other runner's: what it still prints is lost."""

    @property
    def is_over(self) -> bool:
        return not self._ray.is_whole

    @property
    def raylet(self) -> int:
        return self._ray.raylet

    def end(self, *, gently: bool) -> None:
        """End ``ray start``, where it is left; the caller ends what is left of Ray."""
        pid, end_s = self._ray.starter, time.monotonic() + _GRACE_S
        while born_ticks(pid) == self._ray.pids[pid]:
            is_gentle = gently and time.monotonic() < end_s
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if is_gentle else signal.SIGKILL)
            if time.monotonic() > end_s + _GRACE_S:
                return
            time.sleep(_POLL_S)


class _Runner:
    def __init__(self, record: ClusterRecord, adopted: AdoptedRay | None) -> None:
        self._record = record
        self._adopted = adopted
        self._next = NextStart(record.argv, record.env, record.gcs_address if record.role == "worker" else "")
        self._is_stopping = False
        self._is_saved = False

    def stop(self, *_: object) -> None:
        self._is_stopping = True

    def _asked_to_stop(self) -> bool:
        return self._is_stopping

    def work(self) -> int:
        """Keep the node until a signal stops it. Returns 1 where Ray never came up."""
        was_up, num_failures = self._record.phase in ("up", "rejoining"), 0  # as another runner left it
        run: _Run | _AdoptedRun
        while not self._is_stopping:
            begin_s = time.monotonic()
            run = self._begin()
            self._live(run)
            if run.is_up.is_set():
                was_up = True
            if self._asked_to_stop():
                break
            is_blameless = time.monotonic() - begin_s > _STEADY_S or self._next.was_away_since(begin_s)
            num_failures = 0 if was_up and is_blameless else num_failures + 1
            words = last_words(tuple(run.lines))
            if not was_up and is_final(words, num_failures):
                self._tell("failed", words)
                return 1
            self._tell("rejoining" if was_up else "starting", words)
            self.end_leftovers()
            self._rest(backoff_s(num_failures))
            self._wait_for_cluster()
        self._next.end()
        return 0

    def _begin(self) -> _Run | _AdoptedRun:
        """Take over Ray where it runs, else start it."""
        adopted, self._adopted = self._adopted, None
        if adopted is not None:
            return _AdoptedRun(adopted)
        if self._record.phase == "up":
            self._tell("rejoining", "")
        self._record = replace(self._record, session=os.getpid())
        return _Run(self._next.take())

    def _live(self, run: _Run | _AdoptedRun) -> None:
        """Follow Ray to its end, and leave nothing of it."""
        run.begin()
        raylet: int | None = None
        lost = False
        while not run.is_over and not lost and not self._is_stopping:
            if run.is_up.is_set() and raylet is None:
                raylet = run.raylet
                self._tell("up", "")
            lost = raylet is not None and not born_ticks(raylet)
            self._next.look()
            self._pause(_POLL_S)
        run.end(gently=not lost)  # without a raylet there is nothing left to end gently, and Ray takes its time

    def _tell(self, phase: str, detail: str) -> None:
        _say(f"longboat: node {phase} {detail}\n")
        self._record = replace(self._record, phase=phase, detail=detail)
        self.save()

    def save(self) -> None:
        """Write the record; where that fails, it is written at a later look."""
        self._is_saved = False
        with contextlib.suppress(OSError):
            save_record(self._record)
            self._is_saved = True

    def _pause(self, seconds: float) -> None:
        if not self._is_saved and not self._is_stopping:  # the command that ends the node writes its record
            self.save()
        time.sleep(seconds)

    def _rest(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not self._is_stopping:
            self._pause(_POLL_S)

    def _wait_for_cluster(self) -> None:
        """Wait for the head, as a worker: Ray itself would give up."""
        while self._record.role == "worker" and not self._is_stopping:
            if can_connect(self._record.gcs_address, 2.0):
                return
            self._pause(1.0)

    def end_leftovers(self) -> None:
        """End Ray's own processes and engines that lost their agents. This node's gateway keeps running."""
        with contextlib.suppress(ClusterError):
            end_processes_of_ray(self._record.temp_dir, self._record.session)
        for gang in _gangs_here(self._record.run):
            argv = keeper_argv("--reap", f"LONGBOAT_GANG={gang}")
            argv.append(f"LONGBOAT_RUN={self._record.run}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(argv, timeout=_REAP_DEADLINE_S, check=False)


def _say(text: str) -> None:
    """Write to the runner's output at once: a buffer would hold what a full disk refused."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), text.encode(errors="replace"))


def _gangs_here(run: str) -> set[str]:
    """Gangs that have processes on this node."""
    environments = map(environment_of, all_pids())
    here = (env for env in environments if env.get("LONGBOAT_RUN") == run)
    return {env["LONGBOAT_GANG"] for env in here if "LONGBOAT_GANG" in env}


def main() -> int:
    run, adopts = Path(sys.argv[1]), "--adopt" in sys.argv[2:]
    if os.getsid(0) != os.getpid():
        os.setsid()  # Ray's processes are found by their session
    if not adopts:
        sys.stdin.buffer.read()
    record = load_record(run)
    if record is None or (adopts and record.is_ended):
        print(f"longboat: there is no node to keep in {run}", file=sys.stderr)
        return 1
    if (lock := FileLock.awaited(run / "runner.lock", 0.0 if adopts else _GRACE_S)) is None:
        print("longboat: another process keeps this node", file=sys.stderr)
        return 0 if adopts else 1
    with lock:
        return _keep(record.with_runner(os.getpid()), ray_here(record) if adopts else None)


def _keep(record: ClusterRecord, adopted: AdoptedRay | None) -> int:
    runner = _Runner(record, adopted)
    runner.save()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, runner.stop)
    if adopted is None:
        runner.end_leftovers()
    return runner.work()


if __name__ == "__main__":
    sys.exit(main())
