"""Seconds of CPU that single steps of the control plane take, and what follows from them for fleets of any size."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

from longboat.cluster.members.membership import Membership
from longboat.cluster.members.relay_book import announce_every_s, order_every_s
from longboat.cluster.protocol.messages import Announcement
from longboat.core.states import EndpointTable, Phase, RankState, ReplicaState
from longboat.core.table_changes import TableKeeper, TableSender
from longboat.gateway.config import GatewayLimits
from longboat.gateway.upstreams.table import LiveTable
from longboat.heartbeat.relay import Relay
from longboat.heartbeat.relay_listener import Relays
from longboat.heartbeat.relay_wire import interval_s
from longboat.heartbeat.wire import decode_beat, encode_beat
from longboat.routing.capacity.shares import Divider
from longboat.routing.health.liveness import Beat, Life, Liveness, LivenessLimits, RankBeat

__all__ = ("Costs", "measured", "on_paper")

REPLICAS, NODES = 1000, 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of CPU for one step each."""

    line: float  # a relay's empty line, written and read: more than the gateway's part of it
    beat: float  # a heartbeat at a listener, without the read from its socket
    hear: float  # an announcement at the controller, without Ray
    row: float  # an endpoint, when the controller makes its table
    cell: float  # an endpoint at one node, when slots are divided and the change of the node's table is made
    offer: float  # an endpoint, when a gateway takes a changed table


async def measured() -> Costs:
    """Measure every step in this process."""
    membership, said = Membership(), [_announcement(number) for number in range(REPLICAS)]
    for now_s in (0.0, 1.0, 2.0):
        for one in said:
            membership.hear(one, now_s)
    table = membership.table(["m"], 2.0)
    return Costs(
        line=await _line(),
        beat=_beat(),
        hear=_each(REPLICAS, lambda: [membership.hear(one, 3.0) for one in said]),
        row=_each(REPLICAS, lambda: membership.table(["m"], 3.0)),
        cell=_cell(table),
        offer=_offer(table),
    )


def on_paper(costs: Costs, replicas: int, gateways: int, nodes: int) -> dict[str, float]:
    """Return parts of a core: of one gateway, of the controller and of one relay; without Ray's part of each call."""
    every_s = interval_s(nodes)
    announcements, orders = replicas / announce_every_s(replicas), nodes / order_every_s(nodes)
    return {
        "replicas": replicas,
        "gateways": gateways,
        "nodes": nodes,
        "lines a second at a gateway": nodes / every_s,
        "gateway, steady": nodes / every_s * costs.line,
        "gateway, one change a second": nodes / every_s * costs.line + replicas * costs.offer,
        "relay": replicas / nodes * 4 * costs.beat,
        "announcements a second": announcements,
        "orders a second": orders,
        "controller, steady": announcements * costs.hear + 4 * replicas * costs.row,
        "seconds for one change": gateways * replicas * costs.cell,
        "heard directly: lines": 4.0 * replicas,
    }


def _announcement(number: int) -> Announcement:
    rank = RankState(node_rank=0, node_id=f"n{number % NODES}", address="10.0.0.1")
    state = ReplicaState(
        model="m", replica=f"r{number}", generation=1, phase=Phase.READY, url=f"http://h:{number + 1}", ranks=(rank,)
    )
    return Announcement(state=state, slot=number, capacity=64, beats=f"h:{number + 1}", api_key="k" * 32)


def _each(number: int, work: Callable[[], object]) -> float:
    """Return the least CPU time of a few rounds, for one of ``number`` things."""
    return min(_timed(work) for _ in range(5)) / number


def _timed(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _beat() -> float:
    line = encode_beat(Beat(ranks=(RankBeat(node_rank=0, life=Life.RUNS),), steps=1, num_running=1))
    liveness = Liveness(LivenessLimits(), 0.0)

    def hear() -> None:
        for number in range(1000):
            liveness.hear(decode_beat(line), number / 4)
            liveness.judge(number / 4)

    return _each(1000, hear)


def _cell(table: EndpointTable) -> float:
    """Divide a table in which one endpoint changed, and make each node's update of it."""
    divider, senders = Divider(), [TableSender("e") for _ in range(NODES)]
    for sender, own in zip(senders, divider.tables(table, [{}] * NODES), strict=True):
        sender.update(own, 0)
    rounds = iter(range(100))

    def change() -> None:
        number = next(rounds)
        row = dataclasses.replace(table.endpoints[number], ready=False)
        rows = (*table.endpoints[:number], row, *table.endpoints[number + 1 :])
        changed = dataclasses.replace(table, version=number + 2, endpoints=rows)
        for sender, own in zip(senders, divider.tables(changed, [{}] * NODES), strict=True):
            sender.update(own, sender.number)

    return _each(REPLICAS * NODES, change)


def _offer(table: EndpointTable) -> float:
    live, keeper, sender = LiveTable(GatewayLimits()), TableKeeper(), TableSender("e")
    rounds = iter(range(100))

    def take() -> None:
        number = next(rounds)
        row = dataclasses.replace(table.endpoints[number], ready=False)
        rows = (*table.endpoints[:number], row, *table.endpoints[number + 1 :])
        keeper.take(sender.update(dataclasses.replace(table, version=number + 1, endpoints=rows), keeper.number))
        assert keeper.table is not None
        live.offer("e", keeper.table)

    take()
    return _each(REPLICAS, take)


async def _line() -> float:
    """Return the time of a line of a real relay, its writing included. Relays without a listener are left out."""
    relays = [Relay("127.0.0.1") for _ in range(100)]
    for relay in relays:
        await relay.open()
        relay.watch({})
    alone = await _spent(3.0)
    listener = Relays()
    listener.keep({relay.address: relay.key for relay in relays})
    await asyncio.sleep(1.0)
    looking = asyncio.create_task(_look(listener))
    both = await _spent(3.0)
    looking.cancel()
    listener.close()
    for relay in relays:
        relay.close()
    return (both - alone) / (len(relays) / interval_s(len(relays)))


async def _look(listener: Relays) -> None:
    while True:
        listener.look(time.monotonic())
        await asyncio.sleep(0.1)


async def _spent(seconds: float) -> float:
    """Return the CPU time of this process in a second."""
    cpu_s, wall_s = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    return (time.process_time() - cpu_s) / (time.monotonic() - wall_s)
