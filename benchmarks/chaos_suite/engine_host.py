"""An engine and the agent beside it, as a process: ``python engine_host.py`` takes orders as JSON lines on stdin.

First order: ``argv``, ``env``, ``url``, ``key``, ``log``, ``address`` (where heartbeats are heard), ``zygote`` (what
it is forked from; null: it is started plainly). It starts the engine under a keeper, as an agent does, tells
``{"beats": "host:port"}``, then ``{"ready": N}`` each time the engine serves. The engine is started again
when it ends. ``{"signal": NUMBER}`` goes to the engine; ``{"post": PATH, "body": …}`` to its API.
The engine ends when this process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from longboat.cluster.usage.rank_life import RankLife
from longboat.engines.contract import EngineEnvironment, RankCommand, ZygoteRequest
from longboat.engines.launch.process import RankProcess, start_rank
from longboat.engines.launch.zygote_client import ZygoteClient, ensure_zygote
from longboat.heartbeat.line_server import door_socket
from longboat.heartbeat.server import BeatDoor
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Life, RankBeat

LOOK_EVERY_S = 0.05
STEPS_EVERY_S = 0.25
CALL_S = 2.0
ZYGOTE_S = 300.0


class EngineHost:
    """Keeps one engine running, and says how it is."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._url = urlsplit(order["url"])
        self._rank: RankProcess | None = None
        self._life: RankLife | None = None
        self._steps: int | None = None
        self._running: int | None = None

    async def run_always(self) -> None:
        """Start it, wait until it serves, wait for its end, and so on."""
        generation = 0
        while True:
            generation += 1
            self._rank = await self._start()
            self._life = RankLife(self._rank.pid)
            serving = asyncio.create_task(self._tell_when_serving(generation))
            how = await self._rank.wait()
            serving.cancel()
            self._rank.close()
            _tell({"ended": generation, "how": str(how)})

    async def _start(self) -> RankProcess:
        order, log = self._order, Path(self._order["log"])
        asked = order["zygote"]
        zygote = await _zygote(asked) if asked else None
        request = ZygoteRequest(argv=tuple(asked["argv"]), preload_env=asked["preload_env"]) if asked else None
        command = RankCommand(argv=tuple(order["argv"]), env=order["env"], zygote=request)
        marks = {"LONGBOAT_GANG": f"chaos/{log.stem}", "LONGBOAT_RUN": str(log.parent)}
        return await start_rank(command, env_tags=marks, log_path=log, zygote=zygote)

    def beat(self) -> Beat:
        life, cpu_s = self._life.read() if self._life else (Life.ENDED, 0.0)
        rank = RankBeat(node_rank=0, life=life, cpu_s=cpu_s)
        return Beat(ranks=(rank,), steps=self._steps, num_running=self._running)

    async def follow_steps(self) -> None:
        """Ask the engine for its steps, as long as it answers."""
        while True:
            await asyncio.sleep(STEPS_EVERY_S)
            with contextlib.suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
                told = json.loads(await self.call("GET", "/longboat/v1/steps"))
                self._steps, self._running = told["steps"], told["running"]

    def send_signal(self, number: int) -> None:
        if self._rank is not None and not self._rank.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rank.pid, number)

    async def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of the answer. :raises OSError, ValueError, TimeoutError: there is none"""
        async with asyncio.timeout(CALL_S):
            reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
            try:
                head = f"{method} {path} HTTP/1.1\r\nhost: engine\r\nauthorization: Bearer {self._order['key']}\r\n"
                head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
                if " 200 " not in f"{lines[0]} ":
                    raise ValueError(lines[0])
                length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
                return await reader.readexactly(length)
            finally:
                writer.transport.abort()

    async def _tell_when_serving(self, generation: int) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
                await self.call("GET", "/health")
                _tell({"ready": generation})
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _zygote(asked: Mapping[str, Any]) -> ZygoteClient | None:
    """The one of this host. It hangs on who started us (in a host of the lab: on its first process), and outlives us.

    :raises EngineError: it ended while starting
    """
    environment, lifeline_pid = EngineEnvironment(**asked["environment"]), os.getppid() or 1
    overlay, run = asked["overlay"], Path(asked["run"])
    return await ensure_zygote(environment, overlay, asked["preload_env"], run, lifeline_pid, wait_s=ZYGOTE_S)


def _tell(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


async def _obey(host: EngineHost, order: Mapping[str, Any]) -> None:
    if "signal" in order:
        host.send_signal(order["signal"])
    elif "post" in order:
        try:
            await host.call("POST", order["post"], json.dumps(order["body"]).encode())
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
            _tell({"refused": repr(error)})


async def main() -> None:
    """Until stdin ends; then the engine ends too."""
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    order = json.loads(await orders.readline())
    host = EngineHost(order)
    listening = door_socket(order["address"])
    door = BeatDoor(listening, door_word(order["key"]), host.beat)
    await door.open()
    _tell({"beats": "{}:{}".format(*listening.getsockname()[:2])})
    tasks = [asyncio.create_task(host.run_always()), asyncio.create_task(host.follow_steps())]
    while line := await orders.readline():
        await _obey(host, json.loads(line))
    for task in tasks:
        task.cancel()
    host.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
