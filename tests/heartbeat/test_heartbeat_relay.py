"""A node's relay: what gateways conclude through it about the gangs of its node."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from relay_lab import Gang, eventually

from longboat.heartbeat.relay import Relay
from longboat.heartbeat.relay_listener import RelayEar, Relays
from longboat.heartbeat.relay_wire import ALIVE
from longboat.routing.health.liveness import UNHEARD, Health, Judgement, Life


class HandClock:
    """A clock that a test turns by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


class Gateway:
    """What one gateway process knows."""

    def __init__(self, relay: Relay, key: str = "") -> None:
        self.where = relay.address
        self.relays = Relays()
        self.relays.keep({relay.address: key or relay.key})
        self.num_news = 0

    def judged(self, gang: Gang) -> Judgement | None:
        self.num_news += self.relays.look(time.monotonic())
        return self.relays.judgement(self.where, gang.key)

    def health(self, gang: Gang) -> Health | None:
        judged = self.judged(gang)
        return None if judged is None else judged.health


@pytest.fixture
async def gateway(relay: Relay) -> AsyncIterator[Gateway]:
    made = Gateway(relay)
    await eventually(lambda: relay.num_clients, "the gateway listens")
    yield made
    made.relays.close()


async def test_a_stopped_rank_is_lost_and_its_neighbour_is_not(gangs: list[Gang], gateway: Gateway) -> None:
    first, second = gangs
    first.life = Life.STOPPED
    await eventually(lambda: gateway.health(first) is Health.LOST, "the stopped one is lost")
    assert gateway.health(second) is Health.ALIVE
    first.life = Life.RUNS
    await eventually(lambda: gateway.health(first) is Health.ALIVE, "it recovered")


async def test_a_silent_gang_takes_nothing_new(gangs: list[Gang], gateway: Gateway, relay: Relay) -> None:
    silent, other = gangs
    await eventually(lambda: relay._ears[silent.key]._liveness.beat, "the relay heard it")
    silent.is_silent = True
    await eventually(lambda: gateway.health(silent) is Health.SILENT, "it is silent")
    assert relay.unwell == (silent.key,)
    assert gateway.health(other) is Health.ALIVE


async def test_a_gateway_that_comes_later_learns_what_is_lost(gangs: list[Gang], relay: Relay) -> None:
    gangs[0].life = Life.ENDED
    await eventually(lambda: relay.unwell, "the relay knows")
    late = Gateway(relay)
    await eventually(lambda: late.health(gangs[0]) is Health.LOST, "the late one knows")
    late.relays.close()


async def test_a_listener_without_the_key_learns_nothing(gangs: list[Gang], relay: Relay) -> None:
    gangs[0].life = Life.ENDED
    await eventually(lambda: relay.unwell, "the relay knows")
    stranger, friend = Gateway(relay, key="guessed"), Gateway(relay)
    await eventually(lambda: friend.health(gangs[0]) is Health.LOST, "the friend knows")
    assert stranger.health(gangs[0]) is not Health.LOST
    stranger.relays.close()
    friend.relays.close()


@pytest.mark.parametrize("greeting", [b"\n", b"word\n", b"word x\n", b"\xff\xff 250\n", b"GET / HTTP/1.1\r\n"])
async def test_another_greeting_is_answered_by_the_end(relay: Relay, greeting: bytes) -> None:
    host, _, port = relay.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(greeting)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_where_a_relay_is_gone_its_gangs_are_heard_directly(
    gangs: list[Gang], gateway: Gateway, relay: Relay
) -> None:
    await eventually(lambda: gateway.health(gangs[0]) is Health.ALIVE, "it is alive")
    relay.close()
    await eventually(lambda: gateway.health(gangs[0]) is None, "no relay says anything")


async def test_a_relay_says_nothing_for_gangs_that_it_did_not_hear_yet(gangs: list[Gang]) -> None:
    relay = Relay("127.0.0.1")
    await relay.open()
    early = Gateway(relay)
    gangs[0].door.close()
    await asyncio.sleep(0.2)
    assert not relay.num_clients
    relay.watch({gang.key: gang.endpoint for gang in gangs})
    await eventually(lambda: relay.num_clients, "the gateway listens")
    await eventually(lambda: early.judged(gangs[1]) == ALIVE, "the relay heard it")
    assert early.judged(gangs[0]) == UNHEARD
    early.relays.close()
    relay.close()


async def test_a_relay_that_stalls_is_asked_again_before_its_node_counts_as_cut_off() -> None:
    welcomed: list[asyncio.StreamWriter] = []

    async def say_one_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        welcomed.append(writer)
        if len(welcomed) == 1:
            writer.write(b'{"n": 0, "all": {}}\n')
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_one_line, "127.0.0.1")
    where = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    relays = Relays()
    relays.keep({where: "k"})
    seen = set[Health]()

    def is_asked_again() -> bool:
        relays.look(time.monotonic())
        judged = relays.judgement(where, "a")
        seen.add(judged.health if judged is not None else Health.ALIVE)
        return len(welcomed) >= 3

    await eventually(is_asked_again, "the listener connects again and again")
    relays.close()
    server.close()
    for writer in welcomed:
        writer.transport.abort()
    await asyncio.sleep(0)
    assert seen == {Health.ALIVE}


async def test_a_relay_whose_lines_cannot_be_read_is_away() -> None:
    clock = HandClock()
    ear = RelayEar("127.0.0.1:1", "k", 0.25, clock)
    ear.close()
    for _ in range(200):
        clock.now_s += 0.1
        with pytest.raises(ValueError):
            ear.on_line(b"{}")
        ear.look(clock.now_s)
    assert (ear.is_away, ear.is_cut) == (True, False)


async def test_a_gang_that_left_the_table_is_not_judged(gangs: list[Gang], gateway: Gateway, relay: Relay) -> None:
    gangs[0].life = Life.ENDED
    await eventually(lambda: relay.unwell, "the relay knows")
    relay.watch({gangs[1].key: gangs[1].endpoint})
    await eventually(lambda: not relay.unwell, "the relay forgot it")
