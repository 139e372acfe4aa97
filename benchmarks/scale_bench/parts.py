"""One gateway, and the controller, each alone with a large fleet: for machines too busy for the whole stand."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import time
from pathlib import Path
from typing import Any

from longboat.cluster.fleet.controller import FleetController
from longboat.cluster.node.gateway_process import GatewayProcess
from longboat.cluster.protocol.announcer import Announcer
from longboat.cluster.protocol.messages import (
    Announcement,
    GatewayReport,
    GatewaySettings,
    NodeOrder,
    NodeReport,
    Verdict,
)
from longboat.core.states import Endpoint, EndpointTable, Phase, RankState, ReplicaState
from longboat.core.table_changes import TableKeeper, TableSender
from longboat.heartbeat.relay import Relay
from scale_bench.real_controller import real_controller

__all__ = ("controller_alone", "gateway_alone")

MODELS = 4


async def gateway_alone(
    folder: Path, replicas: int, nodes: int, window_s: float, cpu_s: Any, rss_mib: Any
) -> dict[str, float]:
    """Feed a real gateway process as its daemon does. Its relays are real, and their gangs are well."""
    relays = [Relay("127.0.0.1") for _ in range(nodes)]
    for relay in relays:
        await relay.open()
        relay.watch({})
    engine = await asyncio.start_server(_refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
    gateway, sender = GatewayProcess(folder, "n", "127.0.0.1"), TableSender("e")
    names = tuple(f"m{number}" for number in range(MODELS))
    empty = EndpointTable(version=1, models=names, endpoints=())
    full = dataclasses.replace(
        empty,
        version=2,
        endpoints=tuple(_endpoint(number, url, relays[number % nodes]) for number in range(replicas)),
        relays={relay.address: relay.key for relay in relays},
    )
    found: dict[str, float] = {"replicas": replicas, "nodes": nodes}
    pid, _ = await _feed(gateway, sender, empty, 3.0, changes=False)
    for name, table, changes in (("idle", empty, False), ("steady", full, False), ("a change a second", full, True)):
        pid, seconds = await _feed(gateway, sender, table, 3.0, changes=False)
        began = cpu_s(pid)
        pid, seconds = await _feed(gateway, sender, table, window_s, changes=changes)
        found[f"gateway core, {name}"] = (cpu_s(pid) - began) / seconds
        found[f"gateway MiB, {name}"] = rss_mib(pid)
    await gateway.stop()
    engine.close()
    for relay in relays:
        relay.close()
    return found


async def _feed(
    gateway: GatewayProcess, sender: TableSender, table: EndpointTable, seconds: float, *, changes: bool
) -> tuple[int, float]:
    """Order the node once a second. changes: each time, another endpoint is not ready"""
    began_s, turn = time.monotonic(), 0
    while (spent_s := time.monotonic() - began_s) < seconds or not turn:
        turn += 1
        now = table
        if changes:
            rows = list(table.endpoints)
            rows[turn] = dataclasses.replace(rows[turn], ready=False)
            now = dataclasses.replace(table, version=table.version + turn, endpoints=tuple(rows))
        report = await gateway.ensure(_order(sender.update(now, gateway.tables.known_in("e"))))
        await asyncio.sleep(1.0)
    assert report.pid is not None
    return report.pid, spent_s


def _order(update: Any) -> NodeOrder:
    settings = GatewaySettings(host="127.0.0.1", port=0, processes=1, access_log=False)
    return NodeOrder(fleet="scale", update=update, table_is_old=False, gateway=settings, warm=())


def _endpoint(number: int, url: str, relay: Relay) -> Endpoint:
    return Endpoint(
        model=f"m{number % MODELS}",
        replica=f"m{number % MODELS}-{number:05}",
        generation=time.time_ns() // 1_000_000,
        url=f"{url}/{number}",
        api_key="k" * 32,
        capacity=64,
        beats="127.0.0.1:1",
        relay=relay.address,
    )


async def _refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
    writer.close()


async def controller_alone(replicas: int, nodes: int, window_s: float) -> dict[str, float]:
    """Run the real controller with announcers and nodes in this process; their part is counted, too."""
    names = [f"node-{number:04}" for number in range(nodes)]
    daemons = {name: _Node(name) for name in names}
    settings = {"host": "127.0.0.1", "port": 1, "processes": 1}
    models = [f"m{number}" for number in range(MODELS)]
    values = {"fleet": "scale", "models": models, "gateway": settings, "policy": {}}
    controller = await real_controller(daemons.__getitem__, names, values)
    await asyncio.sleep(2.0)
    gangs = [_Gang(number, names[number % nodes], controller) for number in range(replicas)]
    tasks = [asyncio.create_task(gang.announcer.run()) for gang in gangs]
    await asyncio.sleep(30.0)  # until they announce themselves as rarely as they are asked to
    began_s, cpu_s = time.monotonic(), time.process_time()
    heard = sum(gang.num_announced for gang in gangs)
    await asyncio.sleep(window_s)
    seconds, used_s = time.monotonic() - began_s, time.process_time() - cpu_s
    heard = sum(gang.num_announced for gang in gangs) - heard
    latencies = [await _change(gang, daemons) for gang in gangs[:5]]
    loops = (*tasks, *controller._loops, *controller._nodes.values())
    for task in loops:
        task.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    return {
        "controller core": used_s / seconds,
        "announcements a second": heard / seconds,
        "endpoints in every table": float(min(len(daemon.endpoints()) for daemon in daemons.values())),
        "change in all tables, worst s": max(latencies),
    }


async def _change(gang: _Gang, daemons: dict[str, _Node]) -> float:
    """Let one replica drain; return the seconds until no table has it as ready."""
    began_s = time.monotonic()
    gang.phase = Phase.DRAINING
    gang.announcer.change()
    while any(e.ready and e.replica == gang.name for daemon in daemons.values() for e in daemon.endpoints()):  # noqa: ASYNC110 (tables have no event)
        await asyncio.sleep(0.02)
    return time.monotonic() - began_s


class _Gang:
    """A supervisor's announcements."""

    def __init__(self, number: int, node: str, controller: FleetController) -> None:
        self.name = f"m{number % MODELS}-{number:05}"
        self.phase = Phase.READY
        self.num_announced = 0
        self._number = number
        self._node = node
        self._controller = controller
        self.announcer = Announcer(self._announce)

    async def _announce(self) -> Verdict | None:
        self.num_announced += 1
        number, rank = self._number, RankState(node_rank=0, node_id=self._node, address="10.0.0.1")
        state = ReplicaState(
            model=f"m{number % MODELS}",
            replica=self.name,
            generation=1,
            phase=self.phase,
            url=f"http://h:{number + 1}",
            ranks=(rank,),
        )
        said = Announcement(
            state=state, slot=number, capacity=64, beats="h:1", api_key="k" * 32, every_s=self.announcer.every_s
        )
        return await self._controller.announce(pickle.loads(pickle.dumps(said)))  # noqa: S301 (as Ray does)


class _Node:
    """A node's daemon that keeps its table, and has a relay in which all gangs are well."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tables = TableKeeper()
        self.order = self.wakes = self

    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._tables.table.endpoints if self._tables.table is not None else ()

    async def remote(self, order: NodeOrder) -> NodeReport:
        self._tables.take(pickle.loads(pickle.dumps(order)).update)  # noqa: S301 (as Ray does)
        gateway = GatewayReport(
            node_id=self._name,
            address="10.0.0.1",
            hostname="h",
            url="",
            pid=1,
            table_version=order.update.table.version,
            table_number=self._tables.known_in(order.epoch),
        )
        return NodeReport(gateway=gateway, relay=f"{self._name}:1", relay_key="k")
