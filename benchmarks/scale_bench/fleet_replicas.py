"""A process that stands for many replicas: each announces itself and sends heartbeats as a supervisor does."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from longboat.cluster.protocol.announcer import Announcer
from longboat.cluster.protocol.messages import Announcement, Verdict
from longboat.core.states import Phase, RankState, ReplicaState, ResumeLevel
from longboat.heartbeat.line_server import door_socket
from longboat.heartbeat.server import BeatDoor
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Life, RankBeat
from scale_bench.links import Link, serve_link


class FakeReplica:
    """A replica without an engine. Its heartbeats show an engine that works."""

    def __init__(self, name: str, model: str, node: int, number: int, engine_port: int, controller: Link) -> None:
        self.controller = controller
        self.announcer = Announcer(self.announce)
        self.name = name
        self.model = model
        self.node = node
        self.number = number
        self.address = f"127.0.{node // 250}.{node % 250 + 1}"
        self.api_key = f"key-of-{name}-{'x' * 20}"
        self.url = f"http://{self.address}:{engine_port}/{number}"
        self.generation = time.time_ns() // 1_000_000
        self.steps = 0
        listening = door_socket(self.address)
        self.beats = f"{self.address}:{listening.getsockname()[1]}"
        self.door = BeatDoor(listening, door_word(self.api_key), self.tell)
        self.announcing: asyncio.Task[None] | None = None
        self.phase = Phase.READY

    def tell(self) -> Beat:
        self.steps += 25
        rank = RankBeat(node_rank=0, life=Life.RUNS, cpu_s=self.steps / 100)
        return Beat(ranks=(rank,), steps=self.steps, num_running=16)

    def announcement(self) -> Announcement:
        rank = RankState(node_rank=0, node_id=f"node-{self.node:04}", address=self.address, pid=1000 + self.number)
        state = ReplicaState(
            model=self.model,
            replica=self.name,
            generation=self.generation,
            phase=self.phase,
            url=self.url,
            ranks=(rank,),
            phase_s={"starting": 1.0, "loading": 2.0, "warming": 3.0, "ready": time.time() % 1000},
            shape="tensor 1",
            digest=f"digest-of-{self.model}",
            resume=ResumeLevel.CARRIED,
            revision=f"revision-of-{self.model}",
        )
        return Announcement(
            state=state,
            slot=self.number,
            capacity=64,
            beats=self.beats,
            api_key=self.api_key,
            every_s=self.announcer.every_s,
        )

    def hush(self) -> None:
        """Accept connections as the kernel of a stopped process does, and say nothing."""
        assert self.door._ticker is not None
        self.door._ticker.cancel()
        self.door._tell = _say_nothing

    async def announce(self) -> Verdict | None:
        try:
            return await self.controller.call("announce", self.announcement())
        except (OSError, RuntimeError) as error:
            print(f"{self.name}: {error!r}", file=sys.stderr)
            return None


def _say_nothing() -> Beat:
    raise ConnectionAbortedError("a stopped process says nothing")


class Replicas:
    """The replicas of this process."""

    def __init__(self, controller: Link) -> None:
        self._controller = controller
        self._known: dict[str, FakeReplica] = {}

    async def add(self, rows: list[tuple[Any, ...]]) -> None:
        for row in rows:
            replica = self._known[row[0]] = FakeReplica(*row, self._controller)
            await replica.door.open()

    async def begin(self) -> None:
        """Announce the replicas that do not announce themselves yet."""
        for replica in self._known.values():
            replica.announcing = replica.announcing or asyncio.create_task(replica.announcer.run())

    async def silence(self, name: str, close: bool) -> float:
        """Let a replica say nothing more; close: its process has ended. Return the time (monotonic)."""
        replica = self._known.pop(name)
        assert replica.announcing is not None
        replica.announcing.cancel()
        began_s = time.monotonic()
        replica.door.close() if close else replica.hush()
        return began_s


class _NoFeed(asyncio.Protocol):
    """An engine that has none of what is asked for."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if b" /metrics" in data or b"/metrics " in data:
            body = b"vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n"
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        self._transport.close()


async def main() -> None:
    """Serve until standard input ends."""
    own, controller, engine_port = sys.argv[1:4]
    replicas = Replicas(Link(controller))
    with socket.create_server(("0.0.0.0", int(engine_port)), reuse_port=True, backlog=4096) as listening:
        loop = asyncio.get_running_loop()
        engine = await loop.create_server(_NoFeed, sock=listening)
        server = await serve_link(own, {"add": replicas.add, "begin": replicas.begin, "silence": replicas.silence})
        await loop.run_in_executor(None, sys.stdin.read)
        server.close()
        engine.close()


if __name__ == "__main__":
    asyncio.run(main())
