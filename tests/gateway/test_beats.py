"""Heartbeats at the gateway: an endpoint whose gang does not work gets nothing, and its streams hear of it."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_lab import API_KEY, endpoint, eventually, table

from longboat.gateway.upstreams.upstream import Upstream
from longboat.heartbeat.server import BeatDoor, door_socket
from longboat.heartbeat.wire import decode_beat, door_word, encode_beat
from longboat.routing.health.liveness import Beat, Life, RankBeat


class Gang:
    """Two ranks that tell what a test wants."""

    def __init__(self) -> None:
        self.lives = [Life.RUNS, Life.RUNS]
        self._socket = door_socket("127.0.0.1")
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.door = BeatDoor(self._socket, door_word(API_KEY), self.tell)
        self.asked = 0

    def tell(self) -> Beat:
        self.asked += 1
        return Beat(ranks=tuple(RankBeat(node_rank=rank, life=life) for rank, life in enumerate(self.lives)))


class Stream:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.counted: list[str] = []

    def replica_lost(self, detail: str, reason: str) -> None:
        self.reasons.append(detail)
        self.counted.append(reason)


@pytest.fixture
async def gang() -> Any:
    made = Gang()
    await made.door.open()
    yield made
    made.door.close()


async def heard(gang: Gang) -> None:
    """A listener was welcomed."""
    await eventually(lambda: gang.door._listeners, "the gateway listens")


async def live(make_gateway: Any, make_upstream: Any, gang: Gang) -> tuple[Any, Upstream]:
    gateway = await make_gateway(endpoints=[endpoint(await make_upstream(), beats=gang.address)])
    await heard(gang)
    (upstream,) = gateway.state.table.upstreams()
    return gateway, upstream


@pytest.mark.parametrize("life", [Life.STOPPED, Life.ENDED])
async def test_a_gang_with_a_dead_rank_is_lost_and_its_streams_hear_why(
    life: Life, gang: Gang, make_gateway: Any, make_upstream: Any
) -> None:
    gateway, upstream = await live(make_gateway, make_upstream, gang)
    upstream.streams.add(stream := Stream())
    gang.lives[1] = life
    await eventually(lambda: stream.reasons, "the stream was told")
    assert "rank 1" in stream.reasons[0]
    assert stream.counted == ["heartbeat"]
    assert not upstream.ready
    assert (await gateway.report())["lost"]


async def test_a_gang_that_works_again_is_used_again(gang: Gang, make_gateway: Any, make_upstream: Any) -> None:
    _, upstream = await live(make_gateway, make_upstream, gang)
    gang.lives[0] = Life.STOPPED
    await eventually(lambda: upstream.lost, "it is lost")
    gang.lives[0] = Life.RUNS
    await eventually(lambda: upstream.ready, "it is found")
    assert not upstream.lost


async def test_a_new_table_does_not_bring_a_lost_endpoint_back(
    gang: Gang, make_gateway: Any, make_upstream: Any
) -> None:
    engine = endpoint(await make_upstream(), beats=gang.address)
    gateway = await make_gateway(endpoints=[engine])
    await heard(gang)
    (upstream,) = gateway.state.table.upstreams()
    gang.lives[0] = Life.STOPPED
    await eventually(lambda: upstream.lost, "it is lost")
    gateway.state.offer_table("e", table(engine, version=2))
    assert gateway.state.table.upstreams() == [upstream]
    assert not upstream.ready


async def test_a_closed_door_on_a_node_that_answers_ends_nothing(
    gang: Gang, make_gateway: Any, make_upstream: Any
) -> None:
    _, upstream = await live(make_gateway, make_upstream, gang)
    gang.door.close()
    await eventually(lambda: upstream.suspect, "it is doubted")
    assert upstream.ready
    assert not upstream.lost


async def test_an_endpoint_whose_door_is_no_address_is_served(make_gateway: Any, make_upstream: Any) -> None:
    gateway = await make_gateway(endpoints=[endpoint(await make_upstream(), beats="nowhere")])
    assert gateway.state.table.has_ready()


def test_a_beat_comes_out_as_it_went_in() -> None:
    rank = RankBeat(node_rank=3, life=Life.STOPPED, cpu_s=12.5, silent_s=0.25, unreached_s=1.5)
    for beat in (Beat(ranks=(rank,), steps=7, num_running=0), Beat(ranks=())):
        assert decode_beat(encode_beat(beat)) == beat


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b"\xff", b'{"ranks":[[0,"Q",0,0,0]],"steps":1,"running":0}', b'{"ranks":[[0]]}']
)
def test_what_is_no_beat_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_beat(line)
