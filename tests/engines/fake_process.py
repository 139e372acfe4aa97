"""Builders for tests that need running fake engines."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from free_ports import free_port

__all__ = ("PLAIN", "FakeProcess", "fake_engine", "spawn_fake", "wait_until_serving")

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of what speaks no TLS: one that reads all certificates of the machine takes 50 ms of CPU to make."""


@dataclass(frozen=True)
class FakeProcess:
    """A running fake engine."""

    process: subprocess.Popen[str]
    url: str

    def stop(self) -> str:
        """End the engine and return its output."""
        if self.process.poll() is None:
            self.process.kill()
        return self.process.communicate(timeout=10)[0]


def spawn_fake(*flags: str, port: int | None = None, key: str = "") -> FakeProcess:
    """Start an engine process, without waiting for it."""
    port = port or free_port()
    argv = [sys.executable, "-m", "longboat_fake", "--model", "m", "--port", str(port), *flags]
    env = {**os.environ, "LONGBOAT_ENGINE_API_KEY": key}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return FakeProcess(process, f"http://127.0.0.1:{port}")


def wait_until_serving(engine: FakeProcess, deadline_s: float = 20.0) -> None:
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        assert engine.process.poll() is None, f"the engine ended with {engine.process.returncode}: {engine.stop()}"
        try:
            if httpx.get(f"{engine.url}/health", timeout=2, verify=PLAIN).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.02)
    raise AssertionError("the engine does not serve")


@contextmanager
def fake_engine(*flags: str, key: str = "") -> Iterator[FakeProcess]:
    """A serving engine that ends with the block."""
    engine = spawn_fake(*flags, key=key)
    try:
        wait_until_serving(engine)
        yield engine
    finally:
        engine.process.send_signal(signal.SIGKILL)
        engine.process.communicate(timeout=10)
