"""Heartbeats at the gateway: an endpoint whose gang does not work gets nothing, and its streams hear of it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from gateway_lab import API_KEY, endpoint, eventually, table

from longboat.core.states import Endpoint, EndpointTable
from longboat.gateway.upstreams.crash_blame import was_asked_to_end
from longboat.gateway.upstreams.upstream import Upstream
from longboat.heartbeat.line_server import door_socket
from longboat.heartbeat.relay import Relay
from longboat.heartbeat.server import BeatDoor
from longboat.heartbeat.wire import decode_beat, door_word, encode_beat
from longboat.routing.health.liveness import QUIT, Beat, Life, RankBeat


class Gang:
    """Two ranks that tell what a test wants."""

    def __init__(self) -> None:
        self.lives = [Life.RUNS, Life.RUNS]
        self.on_request = False
        self._socket = door_socket("127.0.0.1")
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.door = BeatDoor(self._socket, door_word(API_KEY), self.tell)
        self.asked = 0

    def tell(self) -> Beat:
        self.asked += 1
        asked = self.on_request
        return Beat(
            ranks=tuple(RankBeat(node_rank=n, life=life, on_request=asked) for n, life in enumerate(self.lives))
        )


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
    await eventually(lambda: gang.door.num_clients, "the gateway listens")


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
    assert (await gateway.steering.report())["lost"]


async def test_a_gang_that_works_again_is_used_again(gang: Gang, make_gateway: Any, make_upstream: Any) -> None:
    _, upstream = await live(make_gateway, make_upstream, gang)
    gang.lives[0] = Life.STOPPED
    await eventually(lambda: upstream.lost, "it is lost")
    gang.lives[0] = Life.RUNS
    await eventually(lambda: upstream.ready, "it is found")
    assert not upstream.lost


async def test_an_endpoint_that_left_the_table_may_still_say_why(
    gang: Gang, make_gateway: Any, make_upstream: Any
) -> None:
    gateway, upstream = await live(make_gateway, make_upstream, gang)
    gateway.state.offer_table("e", table(version=2))
    await eventually(lambda: upstream.gone, "it has left the table")
    await asyncio.sleep(0.3)  # the watch has looked since
    gang.on_request = True
    gang.lives = [Life.ENDED, Life.ENDED]
    await eventually(lambda: upstream.last_word == QUIT, "its last heartbeat came")
    await eventually(lambda: not gang.door.num_clients, "the gateway listens no further")


async def test_a_gang_that_was_lost_before_may_still_say_that_it_was_asked_to_end(
    gang: Gang, make_gateway: Any, make_upstream: Any
) -> None:
    _, upstream = await live(make_gateway, make_upstream, gang)
    gang.lives[0] = Life.STOPPED
    await eventually(lambda: upstream.lost, "it is lost")
    asking = asyncio.create_task(was_asked_to_end(upstream, 60.0))
    await asyncio.sleep(0.6)  # the time in which what was lost with it passes its first steps elsewhere, and a look
    gang.on_request = True
    gang.lives = [Life.ENDED, Life.ENDED]
    assert await asyncio.wait_for(asking, 30)


async def test_the_last_heartbeat_holds_though_the_node_of_the_gang_is_out_of_reach_later(
    gang: Gang, make_gateway: Any, make_upstream: Any
) -> None:
    _, upstream = await live(make_gateway, make_upstream, gang)
    gang.on_request = True
    gang.lives[1] = Life.ENDED
    await eventually(lambda: upstream.last_word == QUIT, "its last heartbeat came")
    gang.on_request = False
    gang.lives = [Life.RUNS, Life.RUNS]
    await eventually(lambda: upstream.ready, "another judgement came")
    assert upstream.last_word == QUIT


@pytest.mark.parametrize("is_relayed", [False, True])
async def test_no_last_heartbeat_is_waited_for_where_its_sender_is_gone(
    is_relayed: bool, relayed_gang: RelayedGang, make_gateway: Any, make_upstream: Any
) -> None:
    gang, engine = relayed_gang, await make_upstream()
    gang.relay.watch({gang.made(engine).key: gang.made(engine)})
    gateway = await make_gateway(endpoints=[gang.made(engine)])
    gateway.state.offer_table("e", gang.table(engine, 2, is_relayed=is_relayed))
    await eventually(lambda: gang.asked > 2 and (gang.relay.num_clients or not is_relayed), "the gang is heard")
    (upstream,) = gateway.state.table.upstreams()
    gang.door.close()
    assert not await asyncio.wait_for(was_asked_to_end(upstream, 600.0), 30)


class RelayedGang(Gang):
    """A gang that the relay of its node hears."""

    def __init__(self) -> None:
        super().__init__()
        self.relay = Relay("127.0.0.1")

    def made(self, engine: Any, *, is_relayed: bool = True) -> Endpoint:
        return dataclasses.replace(endpoint(engine, beats=self.address), relay=self.relay.address if is_relayed else "")

    def table(self, engine: Any, version: int, *, is_relayed: bool = True) -> EndpointTable:
        relays = {self.relay.address: self.relay.key} if is_relayed else {}
        return dataclasses.replace(table(self.made(engine, is_relayed=is_relayed), version=version), relays=relays)


@pytest.fixture
async def relayed_gang() -> Any:
    made = RelayedGang()
    await made.door.open()
    await made.relay.open()
    yield made
    made.relay.close()
    made.door.close()


async def test_a_relayed_endpoint_that_a_stream_found_silent_comes_back(
    relayed_gang: RelayedGang, make_gateway: Any, make_upstream: Any
) -> None:
    engine = await make_upstream()
    made = relayed_gang.made(engine)
    relayed_gang.relay.watch({made.key: made})
    gateway = await make_gateway(endpoints=[made])
    gateway.state.offer_table("e", relayed_gang.table(engine, 2))
    await eventually(lambda: relayed_gang.relay.num_clients, "the gateway hears the relay")
    await asyncio.sleep(0.5)  # the relay's first line is news, which would bring the endpoint back
    (upstream,) = gateway.state.table.upstreams()
    upstream.mark_down("it sent nothing", "silent")
    await eventually(lambda: upstream.ready, "it is found")


@pytest.mark.parametrize("is_relayed", [True, False])
async def test_a_lost_endpoint_stays_lost_until_its_next_listener_hears_it(
    is_relayed: bool, relayed_gang: RelayedGang, make_gateway: Any, make_upstream: Any
) -> None:
    engine, gang = await make_upstream(), relayed_gang
    gang.relay.watch({gang.made(engine).key: gang.made(engine)})
    gateway = await make_gateway(endpoints=[gang.made(engine)])
    gateway.state.offer_table("e", gang.table(engine, 2))
    (upstream,) = gateway.state.table.upstreams()
    await eventually(lambda: gang.relay.num_clients, "the gateway hears the relay")
    gang.lives[0] = Life.ENDED
    await eventually(lambda: upstream.lost, "it is lost")
    gang.door.close()
    gang.relay.close()
    gang.relay = Relay("127.0.0.1")  # as after the restart of its node's daemon
    gateway.state.offer_table("e", gang.table(engine, 3, is_relayed=is_relayed))
    await gang.relay.open()
    gang.relay.watch({gang.made(engine).key: gang.made(engine)})
    if is_relayed:
        await eventually(lambda: gang.relay.num_clients, "the gateway hears the new relay")
    await asyncio.sleep(0.5)
    assert upstream.lost and not upstream.ready


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
    cut = RankBeat(node_rank=4, life=Life.RUNS, unacked_s=2.5, unacked_by="10.0.0.2")
    left = RankBeat(node_rank=5, life=Life.ENDED, on_request=True)
    for beat in (Beat(ranks=(rank,), steps=7, num_running=0), Beat(ranks=(rank, cut, left)), Beat(ranks=())):
        assert decode_beat(encode_beat(beat)) == beat


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b"\xff", b'{"ranks":[[0,"Q",0,0,0]],"steps":1,"running":0}', b'{"ranks":[[0]]}']
)
def test_what_is_no_beat_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_beat(line)
