"""Engines that are looked after: what counts as down, and what is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from longboat.cli.gateway.upstream_watch import LATE_IN_A_ROW, UpstreamWatch, Watched
from longboat.core.states import Endpoint
from longboat.spec.files.standalone_gateway import HealthSpec

DEADLINE_S = 20.0
QUICK = HealthSpec(every_s=0.1, timeout_s=0.1)


class Engine:
    """Answers with ``status``; None keeps silent."""

    def __init__(self) -> None:
        self.status: int | None = 200
        self.num_asked = 0
        self.names: list[str] | None = None
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.num_asked += b"/health" in head
        if self.status == 200 and b"/v1/models" in head and self.names is not None:
            cards = [{"id": name, "max_model_len": 4096} for name in self.names]
            writer.write(b"HTTP/1.1 200 X\r\n\r\n" + json.dumps({"data": cards}).encode())
        elif self.status is not None:
            writer.write(b"HTTP/1.1 %d X\r\n\r\n" % self.status)
        else:
            await reader.read()  # until the asker gives up
        writer.close()

    def endpoint(self, replica: str = "r0") -> Endpoint:
        return Endpoint(model="m", replica=replica, generation=1, url=self.url, ready=False)


@pytest.fixture
async def engine() -> AsyncIterator[Callable[[], Awaitable[Engine]]]:
    servers: list[asyncio.Server] = []

    async def make() -> Engine:
        made = Engine()
        servers.append(await asyncio.start_server(made.serve, "127.0.0.1", 0))
        made.url = f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"
        return made

    yield make
    for server in servers:
        server.close()


@pytest.fixture
async def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
async def watch(told: list[tuple[str, str]]) -> AsyncIterator[UpstreamWatch]:
    def note(engine: Watched) -> None:
        told.append((engine.endpoint.replica, engine.state))

    made = UpstreamWatch(note)
    yield made
    made.close()


async def eventually(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


Make = Callable[[], Awaitable[Engine]]
Told = list[tuple[str, str]]


async def test_first_look_tells_nobody(engine: Make, watch: UpstreamWatch, told: Told) -> None:
    well, ill = await engine(), await engine()
    ill.status = 500
    await watch.begin([well.endpoint("a"), ill.endpoint("b")], QUICK)
    assert [endpoint.ready for endpoint in watch.endpoints()] == [True, False]
    assert [one.state for one in watch.watched] == ["ready", "down"]
    assert told == []


async def test_changes_are_told_once(engine: Make, watch: UpstreamWatch, told: Told) -> None:
    one = await engine()
    await watch.begin([one.endpoint()], QUICK)
    one.status = 503
    await eventually(lambda: told)
    asked = one.num_asked
    await eventually(lambda: one.num_asked >= asked + 3)
    one.status = 200
    await eventually(lambda: len(told) > 1)
    assert told == [("r0", "down"), ("r0", "ready")]


@pytest.mark.parametrize(
    ("names", "doubt"),
    [(None, ""), ([], ""), (["lora", "m"], ""), (["org/m", "lora"], "it lists org/m, lora, not m")],
)
async def test_an_engine_that_lists_other_models_is_ready_with_a_doubt(
    engine: Make, watch: UpstreamWatch, names: list[str] | None, doubt: str
) -> None:
    one = await engine()
    one.names = names
    await watch.begin([one.endpoint()], QUICK)
    (seen,) = watch.watched
    assert (seen.state, seen.doubt) == ("ready", doubt)
    assert watch.endpoints()[0].context_tokens == (4096 if "m" in (names or ()) else 0)


async def test_late_answers_in_a_row_count_as_down(engine: Make, watch: UpstreamWatch, told: Told) -> None:
    one = await engine()
    await watch.begin([one.endpoint()], QUICK)
    before = one.num_asked
    one.status = None
    await eventually(lambda: told)
    assert told == [("r0", "down")]
    assert one.num_asked - before >= LATE_IN_A_ROW


async def test_engines_that_stay_keep_their_state(engine: Make, watch: UpstreamWatch, told: Told) -> None:
    stays, goes, comes = await engine(), await engine(), await engine()
    await watch.begin([stays.endpoint("a"), goes.endpoint("b")], HealthSpec())
    watch.change([comes.endpoint("c"), stays.endpoint("renamed")], HealthSpec())
    assert [(e.replica, e.ready) for e in watch.endpoints()] == [("c", False), ("renamed", True)]
    await eventually(lambda: told)
    assert told == [("c", "ready")]
