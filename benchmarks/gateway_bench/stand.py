"""The test stand: mock engines, targets and loads, each a process of its own, all gone at the end."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gateway_bench.processes import Proxy, free_port, wait_for_url
from gateway_bench.targets import Running, Target, start

__all__ = ("Stand", "say")

BENCHMARKS = Path(__file__).resolve().parent.parent
LOAD_DEADLINE_S = 1200.0
CHAT = "/v1/chat/completions"


class Stand:
    """Everything that one part of the benchmark starts."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lb-bench-"))
        self.engines: list[Proxy] = []
        self.upstreams: list[str] = []
        self.running: dict[str, Running] = {}
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # what we start has it too

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name in list(self.running):
            self.stop(name)
        for engine in self.engines:
            engine.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def mock_engines(self, *, ttft_ms: float = 10.0, itl_ms: float = 5.0, count: int = 2) -> None:
        """Engines that only keep time."""
        pace = ["--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)]
        self._engines([sys.executable, str(BENCHMARKS / "mock_engine.py"), *pace], count)

    def fake_engines(self, *words: str, count: int = 2) -> None:
        """Longboat's fake engine: it schedules, and makes requests wait when it is full."""
        command = [sys.executable, "-m", "longboat_fake", "--model", "mock", "--host", "127.0.0.1"]
        self._engines([*command, *words], count)

    def _engines(self, argv: Sequence[str], count: int) -> None:
        for _ in range(count):
            port = free_port()
            engine = Proxy(f"engine-{port}", [*argv, "--port", str(port)], self.folder)
            self.engines.append(engine)
            wait_for_url(f"http://127.0.0.1:{port}/health", 60.0, {}, engine.process)
            self.upstreams.append(f"http://127.0.0.1:{port}")

    def start(self, target: Target) -> Running | None:
        """Running already, or started now; None, and a line that says why, where it does not start."""
        if target.name not in self.running:
            try:
                self.running[target.name] = start(target, self.upstreams, self.folder)
            except (RuntimeError, TimeoutError, OSError) as error:
                say(f"{target.name} did not start: {error}")
                return None
        return self.running[target.name]

    def adopt(self, name: str, running: Running) -> Running:
        """Take down at the end what somebody else started."""
        self.running[name] = running
        return running

    def stop(self, name: str) -> None:
        self.running.pop(name).stop()

    def load(self, running: Running, *words: str | float, keys: Sequence[str] | None = None) -> dict[str, Any]:
        """One run of the load generator. keys None: the target's own."""
        return finished(self.begin_load(running, *words, keys=keys))

    def begin_load(
        self, running: Running, *words: str | float, keys: Sequence[str] | None = None, path: str = CHAT
    ) -> subprocess.Popen[str]:
        """Comes back when the load begins; ``finished`` waits for its end."""
        urls = [running.url + path] if running.proxy else [url + path for url in self.upstreams]
        argv = [sys.executable, str(BENCHMARKS / "load.py"), *urls, "--model", running.model, *map(str, words)]
        if running.proxy:
            argv += ["--watch", running.proxy.mark]
        if chosen := running.keys if keys is None else keys:
            argv += ["--keys", *chosen]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the load did not begin: exit code {process.wait()}")
        return process


def finished(load: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a load and read its result. :raises RuntimeError: it ended without one."""
    output, _ = load.communicate(timeout=LOAD_DEADLINE_S)
    if load.returncode != 0 or not output:
        raise RuntimeError(f"the load failed with exit code {load.returncode}")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def say(text: str) -> None:
    """Progress goes to stderr, results to stdout."""
    print(text, file=sys.stderr, flush=True)
