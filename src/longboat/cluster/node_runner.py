"""Keeps a node in its cluster: runs Ray in the foreground, and starts it again when it ended by itself.

usage: python -m longboat.cluster.node_runner RUN_FOLDER   (with ``{"argv": […], "env": {…}}`` on its input)

Ray ends a node that was cut off when its link returns, since the cluster has declared it dead. What engines are left on
the node then belong to nobody: they are ended before the node joins again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from longboat.cluster.node_record import ClusterRecord, load_record, save_record
from longboat.cluster.ray_command import NODE_MARK
from longboat.engines.process import keeper_path

__all__ = ("backoff_s", "last_words", "main")

_UP = "Ray runtime started."
_POLL_S = 0.2
_GRACE_S = 15.0
_STEADY_S = 60.0
_MAX_BACKOFF_S = 30.0
_REAP_DEADLINE_S = 30.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG_HEAD = re.compile(r"^\[?\d{4}-\d\d-\d\d \S+\s+(?:\w+ )?(?:[\w.]+:\d+ -- )?")


def backoff_s(num_failures: int) -> float:
    """Pause before start number ``num_failures`` + 1: 1, 2, 4 … 30 s."""
    return min(_MAX_BACKOFF_S, 2.0 ** max(0, num_failures - 1))


def last_words(lines: Sequence[str]) -> str:
    """The line of Ray's output that says best why it ended: the last error, else the last line."""
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

    def read(self) -> None:
        """Copy the output to ours until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(line, end="", flush=True)
            self.lines.append(line)
            if _UP in line:
                self.is_up.set()


class _Runner:
    def __init__(self, record: ClusterRecord, argv: list[str], env: Mapping[str, str]) -> None:
        self._record = record
        self._argv = argv
        self._env = env
        self._is_stopping = False

    def stop(self, *_: object) -> None:
        self._is_stopping = True

    def _asked_to_stop(self) -> bool:
        return self._is_stopping

    def work(self) -> int:
        """Until told to stop. 1: Ray did not start the first time."""
        was_up, num_failures = False, 0
        while not self._is_stopping:
            begin_s = time.monotonic()
            run = self._live()
            if run.is_up.is_set():
                was_up = True
            if self._asked_to_stop():
                break
            if not was_up:
                self._tell("failed", last_words(tuple(run.lines)))
                return 1
            num_failures = 1 if time.monotonic() - begin_s > _STEADY_S else num_failures + 1
            self._tell("rejoining", last_words(tuple(run.lines)))
            self._end_leftovers()
            self._rest(backoff_s(num_failures))
            self._wait_for_cluster()
        return 0

    def _live(self) -> _Run:
        """Start Ray, follow it to its end, and leave nothing of it."""
        process = subprocess.Popen(
            self._argv,
            env={**os.environ, **self._env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        run = _Run(process)
        threading.Thread(target=run.read, daemon=True).start()
        told = False
        while process.poll() is None and not self._is_stopping:
            if run.is_up.is_set() and not told:
                self._tell("up", "")
                told = True
            if told and not _has_child(process.pid, "raylet"):
                break
            time.sleep(_POLL_S)
        _end(process)
        time.sleep(_POLL_S)  # the reader takes in the last lines
        return run

    def _tell(self, phase: str, detail: str) -> None:
        print(f"longboat: node {phase} {detail}", flush=True)
        self._record = replace(self._record, phase=phase, detail=detail)
        save_record(self._record)

    def _rest(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not self._is_stopping:
            time.sleep(_POLL_S)

    def _wait_for_cluster(self) -> None:
        """A worker that cannot reach the head waits here, and not in Ray, which gives up."""
        host, _, port = self._record.gcs_address.rpartition(":")
        while self._record.role == "worker" and not self._is_stopping:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2.0):
                return
            time.sleep(1.0)

    def _end_leftovers(self) -> None:
        """End Ray's own processes and engines that lost their agents. This node's gateway is neither: it goes on."""
        for pid in _processes_of_ray(self._record.run, self._record.temp_dir):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for gang in _gangs_here(self._record.run):
            argv = [sys.executable, "-I", "-S", keeper_path(), "--reap", f"LONGBOAT_GANG={gang}"]
            argv.append(f"LONGBOAT_RUN={self._record.run}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(argv, timeout=_REAP_DEADLINE_S, check=False)


def _end(process: subprocess.Popen[str]) -> None:
    """End ``ray start`` and with it the processes of Ray: gently, then not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    if process.poll() is None:
        process.kill()
        process.wait()


def _has_child(parent: int, name: str) -> bool:
    return any(comm == name and ppid == parent for comm, ppid in map(_name_and_parent, _pids()))


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _name_and_parent(pid: int) -> tuple[str, int]:
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return "", 0
    state, parent = tail.split()[:2]
    return ("" if state == "Z" else head.partition("(")[2]), int(parent)


def _environment(pid: int) -> dict[bytes, bytes]:
    try:
        rows = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(row.split(b"=", 1) for row in rows if b"=" in row)


def _processes_of_ray(run: str, temp_dir: str) -> list[int]:
    """Raylet, workers and what else Ray runs for this node, told by their names and by Ray's folder."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            is_ray = command.startswith(b"ray::") or f"{temp_dir}/session_".encode() in command
            if is_ray and _environment(pid).get(NODE_MARK.encode()) == run.encode():
                found.append(pid)
    return found


def _gangs_here(run: str) -> set[str]:
    """Gangs that have processes on this node."""
    environments = map(_environment, _pids())
    here = (env for env in environments if env.get(b"LONGBOAT_RUN") == run.encode())
    return {env[b"LONGBOAT_GANG"].decode() for env in here if b"LONGBOAT_GANG" in env}


def main() -> int:
    run = Path(sys.argv[1])
    order = json.loads(sys.stdin.buffer.read())
    record = load_record(run)
    if record is None:
        print(f"longboat: there is no node record in {run}", file=sys.stderr)
        return 1
    record = record.with_runner(os.getpid())
    save_record(record)
    runner = _Runner(record, order["argv"], order["env"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, runner.stop)
    return runner.work()


if __name__ == "__main__":
    sys.exit(main())
