"""The processes of a chaos run: gateways and engines, each started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_suite.places import without_ray
from chaos_suite.resume_counts import ResumeCounts
from longboat.core.errors import ClusterError
from longboat.core.states import Endpoint, EndpointTable, ResumeLevel
from longboat.engines.contract import RankCommand
from longboat.gateway.admin.control_client import GatewayControl, gateway_command, gateway_stdin
from longboat.gateway.config import GatewayConfig

__all__ = ("EngineOrder", "EnginePart", "GatewayPart")

MODEL = "boat"
LINE_LIMIT_BYTES = 1 << 26
RESTART_S = 0.3
START_S = 30.0


async def begin(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, *, first: bytes = b""
) -> asyncio.subprocess.Process:
    """Start a process that hears us on stdin and tells us lines on stdout. first: what it hears at once."""
    pipe = asyncio.subprocess.PIPE
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *argv, env={**without_ray(os.environ), **(env or {})}, stdin=pipe, stdout=pipe, stderr=errors,
            start_new_session=True, limit=LINE_LIMIT_BYTES,
        )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(first)
    return process


def kill(process: asyncio.subprocess.Process | None) -> None:
    if process is not None and process.returncode is None:
        process.kill()


async def end(process: asyncio.subprocess.Process | None) -> None:
    """Kill it, and wait until it and our pipes to it are gone."""
    kill(process)
    if process is not None:
        await asyncio.wait_for(process.wait(), START_S)
        if process.stdin is not None:
            process.stdin.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOrder:
    """What an engine host is told first. command: of the engine; url: of its API; resume: what it can.

    zygote: what it is forked from (``environment``, ``overlay``, ``run`` folder); None: it is started plainly
    """

    command: RankCommand
    url: str
    key: str
    log: Path
    address: str
    resume: ResumeLevel = ResumeLevel.CARRIED
    zygote: Mapping[str, Any] | None = None

    def line(self) -> bytes:
        document: dict[str, Any] = {"argv": self.command.argv, "env": dict(self.command.env), "zygote": None}
        if self.zygote is not None and self.command.zygote is not None:
            request = self.command.zygote
            asked = {"argv": request.argv, "preload_env": dict(request.preload_env)}
            document["zygote"] = {**self.zygote, **asked}
        document |= {"url": self.url, "key": self.key, "log": str(self.log), "address": self.address}
        return json.dumps(document).encode() + b"\n"


class EnginePart:
    """One engine and its agent (``engine_host``), which is started again when it ends."""

    def __init__(self, name: str, host_argv: Sequence[str], order: EngineOrder, changed: Callable[[], None]) -> None:
        self.name = name
        self.order = order
        self.generation = 0
        self.is_ready = False
        self.ready_changed = asyncio.Event()
        self._base = 0  # generations of hosts before this one
        self._argv = host_argv
        self._changed = changed
        self._beats = ""
        self._host: asyncio.subprocess.Process | None = None

    async def run_always(self) -> None:
        try:
            while True:
                self._base = self.generation
                log = self.order.log.with_suffix(".host.log")
                self._host = await begin(self._argv, log, first=self.order.line())
                await self._listen(self._host)
                self._set(is_ready=False)
                await asyncio.sleep(RESTART_S)
        finally:
            await end(self._host)

    def endpoint(self) -> Endpoint:
        return Endpoint(
            model=MODEL, replica=self.name, generation=self.generation, url=self.order.url, api_key=self.order.key,
            resume=self.order.resume, revision="r1", beats=self._beats,
        )  # fmt: skip

    def tell(self, **order: Any) -> None:
        """An order to the engine's host."""
        if self._host is not None and self._host.stdin is not None and self._host.returncode is None:
            self._host.stdin.write(json.dumps(order).encode() + b"\n")

    def kill_host(self) -> None:
        kill(self._host)

    async def _listen(self, host: asyncio.subprocess.Process) -> None:
        assert host.stdout is not None
        while line := await host.stdout.readline():
            told = json.loads(line)
            if "beats" in told:
                self._beats = told["beats"]
            elif "ready" in told:
                self.generation = self._base + told["ready"]
                self._set(is_ready=True)
            elif "ended" in told:
                self._set(is_ready=False)

    def _set(self, *, is_ready: bool) -> None:
        self.is_ready = is_ready
        self.ready_changed.set()
        self.ready_changed = asyncio.Event()
        self._changed()


class GatewayPart:
    """One gateway, which is started again when it ends, and told the newest table."""

    def __init__(self, number: int, way_in: Sequence[str], config: GatewayConfig, log: Path) -> None:
        self.number = number
        self.config = config
        self.control = GatewayControl(config.control_socket, config.control_token, timeout_s=5.0)
        self.ended = asyncio.Event()
        self._way_in = way_in
        self._log = log
        self._table: EndpointTable | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.is_up = False
        self.pid = 0
        self.resumes = ResumeCounts()

    async def run_always(self) -> None:
        try:
            while True:
                self._process = await begin(
                    [*self._way_in, *gateway_command()], self._log, first=gateway_stdin(self.config)
                )
                assert self._process.stdin is not None and self._process.stdout is not None
                self._process.stdin.close()
                if await self._process.stdout.readline():
                    self.pid = _innermost(self._process.pid)
                    self.is_up = True
                    await self.push(self._table)
                await self._process.wait()
                self.is_up = False
                await asyncio.sleep(RESTART_S)
        finally:
            await end(self._process)

    async def push(self, table: EndpointTable | None) -> None:
        """Now, or when it is up again."""
        self._table = table
        if self.is_up and table is not None:
            with contextlib.suppress(ClusterError):
                await self.control.put_table("chaos", table)

    async def lost(self) -> dict[str, str]:
        """Endpoints that it holds for lost, and why."""
        with contextlib.suppress(ClusterError):
            return dict((await self.control.state()).get("lost") or {})
        return {}

    async def count(self) -> None:
        """Note how many answers were resumed."""
        await self.resumes.ask(self.control, str(self.pid))

    def signal(self, number: int) -> None:
        if self.is_up:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def limit_files(self, *, to_nothing: bool) -> None:
        """Let every write to a file fail, as on a full disk; or no longer."""
        with contextlib.suppress(OSError):
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (0 if to_nothing else hard, hard))


async def until(what: str, fact: Callable[[], bool], deadline_s: float = START_S) -> None:
    """:raises TimeoutError: it did not come true"""
    end_s = time.monotonic() + deadline_s
    while not fact():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {deadline_s:.0f} s: {what}")
        await asyncio.sleep(0.05)


def _innermost(pid: int) -> int:
    """The process that a way into a host ends in: the way itself waits for its only child."""
    while "enter.py" in (command := Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            raise RuntimeError(f"process {pid} ({command[:80]}) has no child")
        pid = int(children[0])
    return pid
