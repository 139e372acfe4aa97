"""A fleet under test: the command line in a run folder of its own, and what tests want to know of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fleet.command_parent import run_command
from free_ports import free_port
from longboat.cluster.host.record import load_record
from netlab.lab import Host, Lab

__all__ = ("COMMAND", "FleetLab", "environments", "fleet_at", "limit_memory", "wait_until")

COMMAND = (sys.executable, "-c", "from longboat.cli.app import main; main()")
DEADLINE_S = 120.0
GATEWAY_PORT = 8000
"""Of fleets in the network lab."""


def wait_until(what: str, condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> float:
    """Wait for ``condition``; returns the seconds it took. Fails the test after a generous deadline."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > deadline_s:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - began_s


@dataclass
class FleetLab:
    """One machine's view: a run folder, a gateway port, and the commands.

    way_in: words in front of every command, which lead into a host of the network lab
    local_port: where the gateway is reached from the test's side
    """

    folder: Path
    port: int = field(default_factory=free_port)
    env: dict[str, str] = field(default_factory=dict)
    way_in: tuple[str, ...] = ()
    local_port: int = 0
    _watcher: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.env = {**inherited, "LONGBOAT_RUN": str(self.folder), "NO_COLOR": "1", **self.env}
        self.local_port = self.local_port or self.port

    def cli(self, *words: str, timeout_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        inside = int(self.way_in[-1]) if self.way_in else None
        return run_command(words, env=self.env, cwd=self.folder, inside=inside, timeout_s=timeout_s)

    def must(self, *words: str, timeout_s: float = DEADLINE_S) -> str:
        """Run a command that is to succeed; its output."""
        done = self.cli(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def popen(self, *words: str, stdout: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a command that stays; its errors go where its output goes."""
        return subprocess.Popen(
            [*self.way_in, *COMMAND, *words],
            env=self.env,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def write(self, text: str, name: str = "fleet.yaml", *, gateway: str = "") -> str:
        """A fleet file with this fleet's gateway port. gateway: more of that section"""
        path = self.folder / name
        path.write_text(f"{text}\ngateway: {{port: {self.port}, {gateway}}}\n")
        return str(path)

    def status(self) -> dict[str, Any]:
        """The newest line of ``longboat status --watch --json``, which goes on running: each start costs seconds."""
        if self._watcher is None or self._watcher.poll() is not None:
            self._watcher = self._watch()
        asked_at_s = time.time()
        while True:
            lines = (self.folder / "status.jsonl").read_text().split("\n")
            if len(lines) > 1 and (document := json.loads(lines[-2]))["at_s"] > asked_at_s:
                return dict(document)
            assert self._watcher.poll() is None, f"longboat status --watch --json ended: {lines[-3:]}"
            assert time.time() - asked_at_s < DEADLINE_S, "no status"
            time.sleep(0.05)

    def _watch(self) -> subprocess.Popen[str]:
        words = (*self.way_in, *COMMAND, "status", "--watch", "--json")
        with (self.folder / "status.jsonl").open("w") as output:
            return subprocess.Popen(words, env=self.env, stdout=output, stderr=output, text=True, cwd=self.folder)

    def replicas(self, model: str | None = None) -> list[dict[str, Any]]:
        """Replicas that are ready."""
        return [r for r in self.status()["replicas"] if r["phase"] == "ready" and model in (None, r["model"])]

    def ask(
        self, model: str, prompt: str = "row", max_tokens: int = 3, timeout_s: float = 20.0, **more: object
    ) -> tuple[int, Any]:
        """A completion through the gateway: HTTP status (0: no answer), and the choice or what went wrong."""
        values = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        body = json.dumps(values).encode()
        url = f"http://127.0.0.1:{self.local_port}/v1/completions"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, json.load(answer)["choices"][0]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError as error:
            return 0, str(error)

    def answers(self, model: str) -> bool:
        """Whether a completion comes back."""
        return self.ask(model)[0] == 200

    def processes(self, **marks: str) -> list[int]:
        """Processes on this machine that belong to this run folder and carry these environment marks."""
        wanted = [f"LONGBOAT_RUN={self.folder}", *(f"{name}={value}" for name, value in marks.items())]
        return [pid for pid, env in environments() if all(mark in env for mark in wanted)]

    def stop_watching(self) -> None:
        """End the status process."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait(timeout=DEADLINE_S)
            self._watcher = None

    def end(self) -> None:
        """Stop everything of this run folder, whatever state it is in. Not gently: Ray would take up to ten seconds."""
        self.stop_watching()
        if (record := load_record(self.folder)) is not None and record.is_kept:
            os.killpg(record.session or record.runner_pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.cli("node", "stop", timeout_s=60.0)
        for pid in self.processes():
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def fleet_in_new_folder(*, own_home: bool = False) -> Iterator[FleetLab]:
    """Give a run folder with a short path (Unix sockets), and end everything in it. own_home: keys outlive fleets"""
    with tempfile.TemporaryDirectory(prefix="lb-", ignore_cleanup_errors=True) as folder:
        fleet = FleetLab(Path(folder), env={"LONGBOAT_HOME": f"{folder}/home"} if own_home else {})
        try:
            yield fleet
        finally:
            fleet.end()


def environments() -> Iterator[tuple[int, set[str]]]:
    """Yield each process of this machine with its environment."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), set((entry / "environ").read_bytes().decode(errors="replace").split("\0"))


def fleet_at(lab: Lab, host: Host) -> FleetLab:
    """The fleet as one host of the network lab has it."""
    return FleetLab(
        Path(host.env["LONGBOAT_RUN"]),
        port=GATEWAY_PORT,
        env=host.env,
        way_in=tuple(host._inside().way_in()),
        local_port=lab.forward(host, GATEWAY_PORT, "127.0.0.1"),
    )


def limit_memory(host: Host, mib: int) -> None:
    """Have the host read a limit of its control group. Only what it tells of itself changes."""
    host._inside().run(f"mount -t tmpfs tmpfs /sys/fs/cgroup; echo {mib * 1024**2} >/sys/fs/cgroup/memory.max")
