"""FleetController: the one deployment that knows the whole fleet; it keeps gateways equal to nodes and feeds them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from longboat.cluster.counts.preferred_nodes import NodeFacts, all_are_placed, without_replicas
from longboat.cluster.fleet.adapters import wanted_adapters
from longboat.cluster.fleet.change_turns import ChangeTurns
from longboat.cluster.fleet.count_loop import CountLoop
from longboat.cluster.fleet.deployed import ENDING, without_file
from longboat.cluster.fleet.node_requests import AskForNodes
from longboat.cluster.fleet.placing import HoldRoom, Placing
from longboat.cluster.fleet.rollouts import Rollouts, Step, read_rollouts
from longboat.cluster.fleet.running_file import RunningFile
from longboat.cluster.fleet.started import STARTED
from longboat.cluster.members.fleet_table import FleetTable
from longboat.cluster.members.node_links import ORDER_EVERY_S, NodeLinks
from longboat.cluster.members.node_orders import NodeOrders
from longboat.cluster.protocol.console_view import ConsoleViews
from longboat.cluster.protocol.messages import Announcement, FleetReport, NodeOrder, Verdict, keys_digest, policy_digest
from longboat.cluster.protocol.node_entry import read_node
from longboat.core.topology import Node
from longboat.telemetry import logger
from longboat.user import user_home

__all__ = ("FleetController",)

log = logger("controller")

ROLL_EVERY_S = 1.0
HUNG_START_S = 7200.0
"""An engine that is not ready this long after its start hangs, unless updates may wait for longer. Even 700 GB over a
link of 1 Gbit/s are loaded by then."""


class NodesNow(NamedTuple):
    """The nodes that are alive, as Ray last listed them."""

    alive: tuple[Node, ...] = ()
    at_s: float = 0.0  # Unix seconds of the list
    resources: Mapping[str, Mapping[str, float]] = {}  # by node


class FleetController:
    """The controller of the whole fleet. Serve restarts it, and it learns its state again within a second."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        daemon_of: Callable[[str], Any],
        end_daemon: Callable[[str], Awaitable[bool]],
        carry_out: Callable[[Callable[[], Awaitable[FleetReport]], Mapping[str, Any], str], Awaitable[Any]],
        hold_room: HoldRoom,
        ask_for_nodes: AskForNodes,
    ) -> None:
        """daemon_of: returns the daemon actor of a node, made when there is none; end_daemon: says whether it ended

        carry_out: carries an order out, with this controller's report and the dashboard's address
        hold_room: holds room on nodes while replicas find their places on others; ask_for_nodes: asks an autoscaler
        """
        self._document: Mapping[str, Any] = {}
        self._fleet = FleetTable(lambda: self._links.wake())
        self._orders = NodeOrders(f"{time.time_ns():x}")
        self._views = ConsoleViews()
        self._file = RunningFile()
        self._nodes = NodesNow()
        self._rollouts = Rollouts()
        self._carry_out = carry_out
        self._turns = ChangeTurns()
        placing = Placing(self._node_facts, hold_room, ask_for_nodes)
        self._counts = CountLoop(self._fleet.states, self._fleet.is_partial, self._fleet.change, placing)
        self._links = NodeLinks(self._orders, self._fleet, self._counts, self._node_order, daemon_of, end_daemon)
        self._begin()

    def _begin(self) -> None:
        self._links.begin()
        loops = (self._follow_nodes(), self._follow_rollouts(), self._counts.run())
        self._loops = [asyncio.create_task(loop) for loop in loops]

    async def reconfigure(self, document: Mapping[str, Any]) -> None:
        """Take over the desired fleet from Serve, as ``serve_config.controller_document`` writes it.

        A ``longboat down`` that was cut may have ended the nodes' daemons already: the next ``up`` needs them again.
        """
        self._document = document
        self._orders.take(document)
        self._fleet.take(document)
        self._rollouts.take(read_rollouts(document), time.monotonic())
        self._counts.take(document)
        if self._links.is_ended and not document.get(ENDING):
            self._begin()

    async def announce(self, announcement: Announcement) -> Verdict:
        """Take in a supervisor's announcement of its gang."""
        self._rollouts.hear(announcement, time.monotonic())
        verdict = self._fleet.hear(announcement)
        model = announcement.state.model
        start_s = max(HUNG_START_S, self._document.get("updates", {}).get(model, {}).get("ready_s", 0.0))
        return dataclasses.replace(verdict, adapters=wanted_adapters(self._document, model), start_s=start_s)

    async def report(self) -> FleetReport:
        """Report everything known, for people."""
        shown = await self._file.shown(str(self._document.get("text", "")))
        return dataclasses.replace(self._report(), shown=shown)

    def _report(self) -> FleetReport:
        reports = self._orders.reports.values()
        keys = self._document.get("policy", {}).get("keys", ())
        return FleetReport(
            fleet=str(self._document.get("fleet", "")),
            document=str(self._document.get("text", "")),
            at_s=time.time(),
            replicas=self._fleet.states_now(),
            gateways=tuple(report.gateway for report in reports),
            failures=self._fleet.members.failures(),
            epoch=self._orders.epoch,
            table_version=self._fleet.table(self._counts).version,
            problems=tuple(report.problem for report in reports if report.problem),
            policy_digest=policy_digest(self._orders.policy(len(self._links.nodes))),
            num_keys=len(keys),
            keys_digest=keys_digest(key["key_id"] for key in keys),
            partial=self._fleet.is_partial(),
            counts=self._counts.keeper.book.counts,
            decisions=self._counts.keeper.book.decisions,
            starts=self._counts.keeper.start_times,
            updating={model: entry["digest"] for model, entry in self._document.get("rollouts", {}).items()},
            planned=without_file(self._document.get("planned", {})),
            taken_back={model: tuple(entry) for model, entry in self._document.get("taken_back", {}).items()},
            started=self._document.get(STARTED, {}),
            nodes=self._nodes.alive,
            nodes_at_s=self._nodes.at_s,
        )

    async def scaling_history(self) -> dict[str, Any]:
        """Return what the scaler saw and decided lately."""
        return await asyncio.to_thread(self._counts.keeper.history.copied().document)

    async def change_fleet(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order of the admin API or the console (see ``change_turns``); never raises."""

        async def change(order: Mapping[str, Any]) -> dict[str, Any]:
            dashboard = str(self._document.get("dashboard", ""))
            found: dict[str, Any] = await self._carry_out(self.report, order, dashboard)
            return found

        return await self._turns.carry_out(change, order)

    async def end_unplaced(self) -> int:
        """End replicas that are to end and never had a place; returns how many there were."""
        return await self._counts.end_unplaced()

    async def end_nodes(self) -> int:
        """End gateways, zygotes and daemons of all nodes; returns how many nodes answered."""
        for loop in self._loops:
            loop.cancel()
        await self._links.stop()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._counts.end()
        return await self._links.end_nodes()

    async def _follow_nodes(self) -> None:
        while True:
            try:
                entries = await asyncio.to_thread(_alive_nodes)
                resources = {entry["NodeID"]: entry["Resources"] for entry in entries}
                self._nodes = NodesNow(tuple(map(read_node, entries)), time.time(), resources)
                self._counts.take_nodes(entries)
                self._links.keep(resources.keys())
            except Exception as error:
                log.warning("cannot list the nodes: %r", error)
            await asyncio.sleep(ORDER_EVERY_S)

    def _node_facts(self, bundles: Mapping[str, list[dict[str, float]]]) -> tuple[NodeFacts, ...]:
        """Return the nodes that replicas can go to; none while it is not known where each replica is."""
        states = self._fleet.states()
        if not all_are_placed(states):
            return ()
        left = without_replicas(self._nodes.alive, states, bundles)
        reports = self._orders.reports
        return tuple(
            NodeFacts(
                node_id=node.node_id,
                name=node.hostname or node.address,
                left=left[node.node_id],
                labels=node.labels,
                weights=frozenset(report.weights.sources if report is not None and report.weights is not None else ()),
                zygotes=report.zygotes if report is not None else (),
            )
            for node in self._nodes.alive
            if not self._fleet.is_drained(node.node_id)
            for report in (reports.get(node.node_id),)
        )

    def _node_order(self, node_id: str) -> NodeOrder:
        table = self._fleet.table(self._counts)
        if self._fleet.is_partial():
            table = dataclasses.replace(table, partial=True)
        order = self._orders.order(node_id, self._links.nodes, table, drained=self._fleet.is_drained(node_id))
        report = self._orders.reports.get(node_id)
        if report is None or not report.gateway.watched:
            return order
        return dataclasses.replace(order, view=self._views.view(self._report, self._nodes.resources))

    async def _follow_rollouts(self) -> None:
        """See updates to their end: the command that began one may have ended."""
        while True:
            await asyncio.sleep(ROLL_EVERY_S)
            try:
                wanted = {model: count.wanted for model, count in self._counts.keeper.book.counts.items()}
                steps = self._rollouts.steps(self._fleet.states(), time.monotonic(), wanted)
            except Exception as error:  # a task root: the next turn tries again
                log.warning("updates cannot be followed: %r", error)
                continue
            for step in steps:
                try:
                    await asyncio.to_thread(_carry_out, step, str(self._document["dashboard"]))
                except Exception as error:  # other models' updates do not wait for this one
                    log.warning("the update of %s cannot be followed: %r", step.model, error)


def _carry_out(step: Step, dashboard: str) -> None:
    from longboat.cluster.fleet.rollout_values import document_after
    from longboat.cluster.fleet.serve_rest import ServeRest
    from longboat.cluster.host.cluster_token import cluster_token
    from longboat.cluster.node.write_turn import writing

    rest = ServeRest(dashboard, cluster_token(os.environ, user_home()))
    with writing():
        document = document_after(rest.details().get("applications", {}), step)
        if document is not None:
            log.warning("update of %s to %s: %s %s", step.model, step.digest, step.kind.value, step.why)
            rest.put(document)


def _alive_nodes() -> list[Mapping[str, Any]]:
    """Return the entries of the nodes that are alive, as Ray lists them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]
