"""Starts llama.cpp's server: the one inside the wheel ``xllamacpp``, or the one that was built with RPC."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longboat_llamacpp.flags import apply_flags, server_parser

__all__ = (
    "Inner",
    "asked_to_end",
    "built_program",
    "held_back_signals",
    "is_built",
    "refusal",
    "start_built",
    "start_from_wheel",
    "wait_for_ranks",
)

SERVER = "llama-server"

RANKS_DEADLINE_S = 120.0
HEALTH_EVERY_S = 0.05
LOOK_EVERY_S = 1.0
_HOST = "127.0.0.1"
_ENDS = {signal.SIGTERM, signal.SIGINT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A llama.cpp server on this host's loopback."""

    url: str
    key: str  # it answers only requests with this key
    process: asyncio.subprocess.Process | None = None  # None: it runs in this process
    server: Any = None  # keeps the wheel's server alive


def is_built() -> bool:
    """Return whether ``llama-server`` was built for this environment."""
    return _program(SERVER).exists()


def _program(name: str) -> Path:
    return Path(sys.executable).parent / name


def built_program(name: str) -> str:
    """Return the path of a program that was built for this environment. Exits where it is missing."""
    path = _program(name)
    if not path.exists():
        sys.exit(f"longboat: {path} is missing: run `longboat engines install llama.cpp` here, with a C++ compiler")
    return str(path)


def start_from_wheel(model: str, alias: str, args: Sequence[str]) -> Inner:
    """Load the model and serve it; returns when it is served."""
    import xllamacpp

    key = secrets.token_urlsafe(24)
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {alias}
    params.hostnames, params.port, params.api_keys = [_HOST], _free_port(), [key]
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.ui = params.fit_params = False
    apply_flags(params, _parsed(args))
    server = xllamacpp.Server(params)
    return Inner(url=server.listening_address, key=key, server=server)


def _parsed(args: Sequence[str]) -> argparse.Namespace:
    return server_parser().parse_args(list(args))


async def start_built(model: str, alias: str, args: Sequence[str]) -> Inner:
    """Start the built ``llama-server`` as a child; returns when it has a process. It ends with this process."""
    key, port = secrets.token_urlsafe(24), _free_port()
    words = ["--model", model, "--alias", alias, "--host", _HOST, "--port", str(port)]
    words += ["--metrics", "--slots", "--fit", "off", *args]
    env = {**os.environ, "LLAMA_API_KEY": key, "GGML_NO_BACKTRACE": "1"}
    with held_back_signals():
        process = await asyncio.create_subprocess_exec(built_program(SERVER), *words, env=env)
    return Inner(url=f"http://{_HOST}:{port}", key=key, process=process)


@contextlib.contextmanager
def held_back_signals() -> Iterator[None]:
    """Let programs that start meanwhile keep SIGTERM and SIGINT waiting: llama-server's own handler takes a lock.

    It hangs for good where the thread that it interrupts has this lock.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def asked_to_end(pid: int, every_s: float = LOOK_EVERY_S) -> None:
    """Wait until one of these signals waits for the process."""
    while True:
        if _waiting_signals(pid):
            return
        await asyncio.sleep(every_s)


def _waiting_signals(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("ShdPnd:"):
                bits = int(line.split()[1], 16)
                return {number for number in _ENDS if bits >> (number - 1) & 1}
    return set()


async def refusal(url: str, every_s: float = LOOK_EVERY_S) -> None:
    """Wait until the server at ``url``, which took connections before, refuses one.

    A server that was asked to end takes no more connections, and may not answer on those that it has. No request that
    waits for it would show that.
    """
    address = urllib.parse.urlsplit(url)
    is_reached = False
    while True:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address.hostname, address.port), every_s)
        except ConnectionRefusedError:
            if is_reached:
                return
        except OSError:  # a shortage of descriptors here, or a busy machine: it may be there
            pass
        else:
            is_reached = True
            writer.close()
        await asyncio.sleep(every_s)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_ranks(addresses: Sequence[str], deadline_s: float = RANKS_DEADLINE_S) -> None:
    """Wait until each ``rpc-server`` listens: llama-server gives up at once where one does not.

    Exits where one does not listen by the deadline.
    """
    end_s = time.monotonic() + deadline_s
    for address in addresses:
        host, _, port = address.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=2.0).close()
                break
            except OSError as error:
                if time.monotonic() > end_s:
                    sys.exit(f"longboat: no rpc-server listens at {address} after {deadline_s:.0f} s: {error}")
                time.sleep(HEALTH_EVERY_S)
