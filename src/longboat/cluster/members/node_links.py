"""The links to the daemons of all nodes: loops that order each node, and hear which models its requests wake."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from longboat.cluster.members.fleet_table import FleetTable, Numbers
from longboat.cluster.members.node_orders import NodeOrders
from longboat.cluster.members.relay_book import order_every_s, push_pause_s
from longboat.cluster.protocol.messages import NodeOrder, NodeReport
from longboat.telemetry import logger

__all__ = ("ORDER_EVERY_S", "Counted", "NodeLinks")

log = logger("controller")

ORDER_EVERY_S = 1.0
ORDER_TIMEOUT_S = 8.0
WAKES_TIMEOUT_S = 10.0
WAKES_PAUSE_S = 0.05


class Counted(Numbers, Protocol):
    """The part of the controller that counts what nodes report of their requests."""

    def hear(self, node_id: str, report: NodeReport) -> None:
        """Take in what a node counted for each model."""

    def woken(self, models: Iterable[str]) -> None:
        """Look at once where requests wait for models that sleep."""


class NodeLinks:
    """One link for each node, with its own loops, so that a silent node delays no other."""

    def __init__(
        self,
        orders: NodeOrders,
        fleet: FleetTable,
        counts: Counted,
        order_for: Callable[[str], NodeOrder],
        daemon_of: Callable[[str], Any],
        end_daemon: Callable[[str], Awaitable[bool]],
    ) -> None:
        """order_for: makes a node's order

        daemon_of: returns the daemon actor of a node, made when there is none; end_daemon: says whether it ended
        """
        self._orders = orders
        self._fleet = fleet
        self._counts = counts
        self._order_for = order_for
        self._daemon_of = daemon_of
        self._end_daemon = end_daemon
        self._loops: Mapping[str, asyncio.Future[Any]] = {}
        self._changed = asyncio.Event()
        self.is_ended = False

    @property
    def nodes(self) -> Collection[str]:
        """Return the ids of the nodes."""
        return self._loops.keys()

    def begin(self) -> None:
        """Have no node yet, and take nodes from now on."""
        self._loops, self.is_ended = {}, False

    def keep(self, alive: Collection[str]) -> None:
        """Begin links to new nodes, and forget those that left the cluster."""
        left = {node_id: loop for node_id, loop in self._loops.items() if node_id not in alive}
        for node_id, loop in left.items():
            loop.cancel()
            self._orders.leave(node_id)
            self._fleet.relays.leave(node_id)
            self._fleet.members.leave_node(node_id)
        stay = {node_id: loop for node_id, loop in self._loops.items() if node_id in alive}
        new = {id_: asyncio.gather(self._follow(id_), self._follow_wakes(id_)) for id_ in alive if id_ not in stay}
        self._loops = {**stay, **new}

    def wake(self) -> None:
        """Have every node ordered soon: something changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def stop(self) -> None:
        """Order no node any more."""
        self.is_ended = True
        for loop in self._loops.values():
            loop.cancel()
        await asyncio.gather(*self._loops.values(), return_exceptions=True)

    async def end_nodes(self) -> int:
        """End gateways, zygotes and daemons of all nodes; returns how many nodes answered."""
        ended = await asyncio.gather(*map(self._end_daemon, self._loops), return_exceptions=True)
        return sum(1 for answer in ended if answer is True)

    async def _follow(self, node_id: str) -> None:
        """Order one node again and again."""
        while not self.is_ended:
            changed = self._changed
            if self._orders.has_fleet and await self._order(node_id) and self._orders.has_gap(node_id):
                await self._order(node_id)
            pause_s = push_pause_s(len(self._loops), len(self._fleet.members))
            has_unwell = self._fleet.relays.has_unwell(node_id)  # a recovery is to be learned soon
            every_s = ORDER_EVERY_S if has_unwell else order_every_s(len(self._loops))
            await asyncio.sleep(pause_s)
            await _set_within(changed, every_s - pause_s)

    async def _order(self, node_id: str) -> bool:
        """Order one node once; returns whether it answered."""
        try:
            daemon = await asyncio.wait_for(asyncio.to_thread(self._daemon_of, node_id), ORDER_TIMEOUT_S)
            answer = daemon.order.remote(self._order_for(node_id))
            report = self._orders.reports[node_id] = await asyncio.wait_for(answer, ORDER_TIMEOUT_S)
            self._fleet.hear_relay(node_id, report)
            self._counts.hear(node_id, report)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.warning("node %s does not take orders: %r", node_id[:8], error)
            self._orders.silent(node_id, error)
            self._fleet.relays.forget_unwell(node_id)
            return False
        return True

    async def _follow_wakes(self, node_id: str) -> None:
        """Hear at once of requests for models that sleep."""
        while not self.is_ended:
            changed = self._changed
            if any(not asleep.paused for asleep in self._counts.asleep.values()):
                await self._hear_wakes(node_id)
            else:
                await _set_within(changed, ORDER_EVERY_S)

    async def _hear_wakes(self, node_id: str) -> None:
        try:
            daemon = await asyncio.to_thread(self._daemon_of, node_id)
            self._counts.woken(await asyncio.wait_for(daemon.wakes.remote(), WAKES_TIMEOUT_S))
            await asyncio.sleep(WAKES_PAUSE_S)
        except Exception as error:  # ``_order`` says what is wrong with the node
            log.debug("node %s does not say what its requests wake: %r", node_id[:8], error)
            await asyncio.sleep(ORDER_EVERY_S)


async def _set_within(event: asyncio.Event, limit_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
