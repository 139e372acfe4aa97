"""The loops that order nodes: each node has its own, from the moment at which it is there until it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from longboat.cluster.members.fleet_table import FleetTable
from longboat.cluster.members.node_links import NodeLinks
from longboat.cluster.members.node_orders import NodeOrders
from longboat.cluster.protocol.messages import GatewayReport, NodeOrder, NodeReport
from longboat.core.states import Asleep
from waiting import wait_until_async


class Daemon:
    """A node's daemon that counts its orders, and may leave them without an answer."""

    def __init__(self, node_id: str, *, answers: bool = True) -> None:
        self.num_orders = 0
        self.order = SimpleNamespace(remote=self._order)
        self.wakes = SimpleNamespace(remote=self._wakes)
        self._node_id, self._answers = node_id, answers

    async def _order(self, _order: NodeOrder) -> NodeReport:
        self.num_orders += 1
        if not self._answers:
            await asyncio.Event().wait()
        return NodeReport(gateway=GatewayReport(
            node_id=self._node_id, address="", hostname="", url="", pid=None, table_version=0
        ))  # fmt: skip

    async def _wakes(self) -> tuple[str, ...]:
        return ("tiny",)


class Counts:
    """What is counted of nodes' reports, and which models sleep."""

    figures: Mapping[str, Mapping[str, float]] = {}

    def __init__(self) -> None:
        self.asleep: Mapping[str, Asleep] = {}
        self.heard: list[str] = []
        self.woken_models: list[str] = []

    def hear(self, node_id: str, report: NodeReport) -> None:
        self.heard.append(node_id)

    def woken(self, models: Iterable[str]) -> None:
        self.woken_models.extend(models)


class Stand:
    """Links to daemons by their nodes' names."""

    def __init__(self) -> None:
        self.daemons = {"a": Daemon("a"), "b": Daemon("b"), "mute": Daemon("mute", answers=False)}
        self.orders, self.counts, self.ended = NodeOrders("e"), Counts(), list[str]()
        order: Callable[[str], Any] = SimpleNamespace
        fleet = FleetTable(lambda: None)
        self.links = NodeLinks(self.orders, fleet, self.counts, lambda _: order(), self.daemons.__getitem__, self._end)

    async def _end(self, node_id: str) -> bool:
        self.ended.append(node_id)
        return node_id != "mute"

    def up(self) -> None:
        self.orders.take({"fleet": "f"})


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    made = Stand()
    yield made
    await made.links.stop()


async def test_a_silent_node_delays_no_other(stand: Stand) -> None:
    stand.up()
    stand.links.keep({"mute", "a", "b"})
    await wait_until_async(lambda: {"a", "b"} <= set(stand.counts.heard))
    assert stand.daemons["mute"].num_orders == 1
    assert "mute" not in stand.counts.heard


async def test_a_node_that_left_is_ordered_no_more_and_its_report_is_forgotten(stand: Stand) -> None:
    stand.up()
    stand.links.keep({"a", "b"})
    await wait_until_async(lambda: {"a", "b"} <= set(stand.orders.reports))
    stand.links.keep({"b"})
    await asyncio.sleep(0)
    before = stand.daemons["a"].num_orders, stand.daemons["b"].num_orders
    assert set(stand.links.nodes) == set(stand.orders.reports) == {"b"}
    stand.links.wake()
    await wait_until_async(lambda: stand.daemons["b"].num_orders > before[1])
    assert stand.daemons["a"].num_orders == before[0]


async def test_no_node_is_ordered_before_there_is_a_fleet(stand: Stand) -> None:
    stand.links.keep({"a"})
    await asyncio.sleep(0.05)
    assert stand.daemons["a"].num_orders == 0
    stand.up()
    stand.links.wake()
    await wait_until_async(lambda: stand.daemons["a"].num_orders > 0)


async def test_requests_for_a_model_that_sleeps_are_heard_of(stand: Stand) -> None:
    stand.up()
    stand.counts.asleep = {"tiny": Asleep()}
    stand.links.keep({"a"})
    await wait_until_async(lambda: "tiny" in stand.counts.woken_models)


async def test_the_end_counts_the_nodes_that_answered(stand: Stand) -> None:
    stand.up()
    stand.links.keep({"a", "mute"})
    await stand.links.stop()
    assert await stand.links.end_nodes() == 1
    assert sorted(stand.ended) == ["a", "mute"]
    stand.links.begin()
    assert not stand.links.nodes and not stand.links.is_ended
