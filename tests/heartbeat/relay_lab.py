"""Gangs that tell what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from longboat.core.states import Endpoint
from longboat.heartbeat.line_server import door_socket
from longboat.heartbeat.server import BeatDoor
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Life, RankBeat


async def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    for _ in range(1500):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not come true: {what}")


class Gang:
    """A gang of one rank."""

    def __init__(self, name: str) -> None:
        self.life = Life.RUNS
        self.is_silent = False
        listening = door_socket("127.0.0.1")
        self.door = BeatDoor(listening, door_word("k"), self.tell)
        beats = f"127.0.0.1:{listening.getsockname()[1]}"
        self.endpoint = Endpoint(model="m", replica=name, generation=1, url="http://h:1", api_key="k", beats=beats)
        self.key = self.endpoint.key

    def tell(self) -> Beat:
        if self.is_silent:
            raise ConnectionAbortedError("a stopped process says nothing")
        return Beat(ranks=(RankBeat(node_rank=0, life=self.life),))
