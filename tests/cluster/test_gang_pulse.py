"""The pulse of a gang: what its agents tell reaches who listens, and a rank that stopped is named."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from longboat.cluster.gang.heartbeat_publisher import DOOR, GangPulse
from longboat.cluster.usage.rank_life import RankLife
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.heartbeat.line_server import door_socket
from longboat.heartbeat.listener import listen
from longboat.heartbeat.server import BeatDoor
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Life, RankBeat

DEADLINE_S = 30.0
KEY = "secret"


@dataclass
class Rank:
    """An agent's door, and what it says."""

    node_rank: int
    life: Life = Life.RUNS
    cpu_s: float = 0.0
    unacked_s: float = 0.0

    def __post_init__(self) -> None:
        self.socket = door_socket("127.0.0.1")
        self.port: int = self.socket.getsockname()[1]
        self.door = BeatDoor(self.socket, door_word(KEY), self.tell)

    def tell(self) -> Beat:
        beat = RankBeat(node_rank=self.node_rank, life=self.life, cpu_s=self.cpu_s, unacked_s=self.unacked_s)
        return Beat(ranks=(beat,))


@dataclass
class Heard:
    beats: list[Beat]
    times_reached: int = 0

    def on_beat(self, beat: Beat) -> None:
        self.beats.append(beat)

    def on_reached(self, *, is_refused: bool = False) -> None:
        self.times_reached += 1


@contextlib.asynccontextmanager
async def listening(address: str, word: bytes) -> AsyncIterator[Heard]:
    heard = Heard([])
    host, _, port = address.rpartition(":")
    task = asyncio.create_task(listen(host, int(port), word, heard))
    yield heard
    task.cancel()


@pytest.fixture
async def ranks() -> AsyncIterator[list[Rank]]:
    made = [Rank(0), Rank(1)]
    for rank in made:
        await rank.door.open()
    yield made
    for rank in made:
        rank.door.close()


@pytest.fixture
async def pulse(ranks: list[Rank]) -> AsyncIterator[GangPulse]:
    made = GangPulse.of(plan(ranks))
    assert made is not None
    yield made
    made.close()


def plan(ranks: list[Rank], api_port: int = 1) -> GangPlan:
    places = tuple(
        RankPlan(
            node_rank=rank.node_rank,
            node_id="n",
            address="127.0.0.1",
            interface="lo",
            ports={DOOR: rank.port, "api": api_port},
        )
        for rank in ranks
    )
    shape = GangShape(tensor=1, pipeline=2, num_nodes=2, resources=RankResources())
    return GangPlan(
        fleet="f",
        model="m",
        source="s",
        model_path="/m",
        replica="r",
        generation=1,
        shape=shape,
        ranks=places,
        context_tokens=None,
        api_key=KEY,
    )


async def until(fact: object, what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # type: ignore[operator]  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never came true: {what}") from None


async def test_who_knows_the_word_hears_of_all_ranks(ranks: list[Rank], pulse: GangPulse) -> None:
    ranks[1].cpu_s = 7.5
    async with listening(pulse.address, door_word(KEY)) as heard:
        await until(lambda: heard.beats and heard.beats[-1].ranks[1].cpu_s == 7.5, "rank 1's CPU time came")
        assert [rank.node_rank for rank in heard.beats[-1].ranks] == [0, 1]


async def test_the_last_heartbeat_says_how_the_ranks_ended(ranks: list[Rank]) -> None:
    own = RankBeat(node_rank=0, life=Life.RUNS)
    pulse = GangPulse.of(plan(ranks), lambda: Beat(ranks=(own,)))
    assert pulse is not None
    async with listening(pulse.address, door_word(KEY)) as heard:
        await until(lambda: heard.beats, "a heartbeat came")
        own = RankBeat(node_rank=0, life=Life.ENDED, on_request=True)
        pulse.close()
        await until(lambda: heard.times_reached > 1, "the connection has ended")
    assert heard.beats[-1].ranks[0] == own


async def test_who_does_not_know_the_word_hears_nothing(pulse: GangPulse) -> None:
    async with listening(pulse.address, door_word("another")) as heard:
        await until(lambda: heard.times_reached >= 2, "it was turned away and came back")
        assert not heard.beats


async def test_a_stopped_rank_is_a_loss(ranks: list[Rank], pulse: GangPulse) -> None:
    ranks[1].life = Life.STOPPED
    loss = await asyncio.wait_for(pulse.loss(), DEADLINE_S)
    assert loss.node_rank == 1
    assert "stopped" in loss.reason
    assert loss.on_request, "a signal stopped it, and no request"


async def test_a_gang_whose_ranks_cannot_reach_each_other_ends_on_request(ranks: list[Rank], pulse: GangPulse) -> None:
    ranks[1].unacked_s = 3.5
    loss = await asyncio.wait_for(pulse.loss(), DEADLINE_S)
    assert loss.node_rank == 1 and loss.on_request


async def test_a_rank_that_was_asked_to_end_is_left_to_its_agent_s_report(ranks: list[Rank]) -> None:
    own = RankBeat(node_rank=0, life=Life.ENDED, on_request=True)
    pulse = GangPulse.of(plan(ranks), lambda: Beat(ranks=(own,)))
    assert pulse is not None
    try:
        loss = asyncio.create_task(pulse.loss())
        async with listening(pulse.address, door_word(KEY)) as heard:
            await until(lambda: len(heard.beats) > 3, "it was judged")
        assert not loss.done()
        loss.cancel()
    finally:
        pulse.close()


async def test_a_rank_in_the_supervisors_own_process_is_read_without_a_connection(ranks: list[Rank]) -> None:
    ranks[0].cpu_s, ranks[1].cpu_s = 3.5, 7.5
    pulse = GangPulse.of(plan(ranks), ranks[0].tell)
    assert pulse is not None
    try:
        async with listening(pulse.address, door_word(KEY)) as heard:
            await until(lambda: heard.beats and heard.beats[-1].ranks[1].cpu_s == 7.5, "rank 1's CPU time came")
            assert heard.beats[-1].ranks[0].cpu_s == 3.5
            assert (ranks[0].door.num_clients, ranks[1].door.num_clients) == (0, 1)
        ranks[0].life = Life.STOPPED
        loss = await asyncio.wait_for(pulse.loss(), DEADLINE_S)
        assert loss.node_rank == 0
    finally:
        pulse.close()


async def test_a_rank_in_the_supervisors_own_process_is_not_judged_before_it_runs(ranks: list[Rank]) -> None:
    pulse = GangPulse.of(plan(ranks), lambda: None)
    assert pulse is not None
    try:
        assert pulse.tell().ranks[0].life is Life.RUNS
    finally:
        pulse.close()


async def test_a_rank_whose_agent_is_away_is_told_as_silent(ranks: list[Rank], pulse: GangPulse) -> None:
    async with listening(pulse.address, door_word(KEY)) as heard:
        await until(lambda: heard.beats, "it beats")
        ranks[1].door.close()
        await until(lambda: heard.beats[-1].ranks[1].silent_s > 1.0, "rank 1 is silent")
        assert heard.beats[-1].ranks[1].unreached_s < 1.0, "its node answers: it refuses"


async def test_a_gang_without_doors_has_no_pulse(ranks: list[Rank]) -> None:
    whole = plan(ranks)
    assert GangPulse.of(GangPlan(**{**_fields(whole), "ranks": (_without_door(whole.ranks[0]),)})) is None


def _fields(made: GangPlan) -> dict[str, object]:
    return {name: getattr(made, name) for name in made.__dataclass_fields__}


def _without_door(rank: RankPlan) -> RankPlan:
    return RankPlan(node_rank=0, node_id="n", address=rank.address, interface="lo", ports={"api": 1})


class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path == "/longboat/v1/steps" and self.headers["Authorization"] == f"Bearer {KEY}"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(b'{"steps": 41, "running": 2, "waiting": 1}')

    def log_message(self, *args: object) -> None:
        pass


async def test_the_engines_steps_are_told(ranks: list[Rank], engine_port: int) -> None:
    pulse = GangPulse.of(plan(ranks, engine_port))
    assert pulse is not None
    try:
        await until(lambda: pulse.tell().steps == 41, "steps came")
        assert pulse.tell().num_running == 3
    finally:
        pulse.close()


PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'input()']); time.sleep(60)"


def test_a_stopped_child_stops_its_rank() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE)
    life = RankLife(parent.pid)
    try:
        assert _becomes(life, Life.RUNS)
        child = _child_of(parent.pid)
        os.kill(child, signal.SIGSTOP)
        assert _becomes(life, Life.STOPPED)
        os.kill(child, signal.SIGCONT)
        assert _becomes(life, Life.RUNS)
        os.kill(child, signal.SIGKILL)
        assert life.read()[1] >= 0.0
    finally:
        parent.kill()
        parent.wait()
    assert life.read()[0] is Life.ENDED


def test_a_busy_process_takes_cpu_time_and_a_sleeping_one_none() -> None:
    rates = []
    for code in ("while True: pass", "import time; time.sleep(600)"):
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            life = RankLife(process.pid)
            try:
                rates.append(_cpu_s_in_ten_readings(life))
            finally:
                process.kill()
    busy_s, idle_s = rates
    assert busy_s > idle_s


def _cpu_s_in_ten_readings(life: RankLife) -> float:
    pause = threading.Event()
    pause.wait(2.0)  # it has started by then
    before_s = life.read()[1]
    for _ in range(10):
        pause.wait(0.1)
        life.read()
    return life.read()[1] - before_s


def _becomes(life: RankLife, wanted: Life) -> bool:
    return any(life.read()[0] is wanted for _ in _tries())


def _child_of(pid: int) -> int:
    for _ in _tries():
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            if children := file.read().split():
                return int(children[0])
    raise AssertionError("it started nothing")


def _tries() -> Iterator[None]:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.05)):
        yield
        pause.wait(0.05)


def test_a_door_that_is_not_open_yet_keeps_who_knocks_waiting() -> None:
    listening_socket = door_socket("127.0.0.1")
    with listening_socket, socket.create_connection(listening_socket.getsockname(), timeout=DEADLINE_S) as knocker:
        knocker.sendall(door_word(KEY))
