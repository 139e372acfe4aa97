"""FleetController: the one deployment that knows the whole fleet; it keeps gateways equal to nodes and feeds them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from longboat.cluster.fleet.adapters import wanted_adapters
from longboat.cluster.fleet.drains import Drains, read_drains
from longboat.cluster.fleet.gateway_orders import SlotShares, policy_document
from longboat.cluster.fleet.membership import Membership
from longboat.cluster.fleet.rollouts import Rollouts, Step, read_rollouts
from longboat.cluster.fleet.startup_grace import HoldOff
from longboat.cluster.gang.drain_tracker import LeaveRules, Leaving, Stay
from longboat.cluster.protocol.messages import (
    Announcement,
    FleetReport,
    GatewayReport,
    GatewaySettings,
    NodeOrder,
    NodeReport,
    Verdict,
    WarmEnvironment,
    policy_digest,
)
from longboat.core.states import EndpointTable, Phase
from longboat.telemetry import logger

__all__ = ("FleetController",)

log = logger("controller")

ORDER_EVERY_S = 1.0
ORDER_TIMEOUT_S = 8.0
ROLL_EVERY_S = 1.0


class FleetController:  # size: one Serve deployment answers supervisors, commands and Serve, and orders all nodes
    """The controller of the whole fleet. Serve restarts it, and it learns its state again within a second."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self, daemon_of: Callable[[str], Any], end_daemon: Callable[[str], Awaitable[bool]]
    ) -> None:
        """daemon_of: returns the daemon actor of a node, made when there is none; end_daemon: says whether it ended"""
        self._daemon_of = daemon_of
        self._end_daemon = end_daemon
        self._membership = Membership()
        self._document: Mapping[str, Any] = {}
        self._policy: tuple[int, bytes] | None = None  # number of gateways it is for, and the document
        self._slot_shares = SlotShares()
        self._epoch = f"{time.time_ns():x}"
        self._hold_off = HoldOff(time.monotonic())
        self._leaving = Leaving()
        self._stays: dict[str, Stay] = {}
        self._drains = Drains()
        self._rollouts = Rollouts()
        self._changed = asyncio.Event()
        self._nodes: dict[str, asyncio.Task[None]] = {}
        self._reports: dict[str, NodeReport] = {}
        self._stopping = False
        self._loops = [asyncio.create_task(self._follow_nodes()), asyncio.create_task(self._follow_rollouts())]

    async def reconfigure(self, document: Mapping[str, Any]) -> None:
        """Take over the desired fleet from Serve, as ``serve_config.controller_document`` writes it."""
        self._document, self._policy = document, None
        self._drains = read_drains(document)
        self._rollouts.take(read_rollouts(document), time.monotonic())
        self._wake()

    async def announce(self, announcement: Announcement) -> Verdict:
        """Take in a supervisor's announcement of its gang."""
        before = self._table_version()
        self._hold_off.heard(time.monotonic())
        self._rollouts.hear(announcement)
        verdict = self._membership.hear(announcement, time.time())
        if self._table_version() != before:
            self._wake()
        return self._with_leave(verdict, announcement)

    def _with_leave(self, verdict: Verdict, announcement: Announcement) -> Verdict:
        state = announcement.state
        verdict = dataclasses.replace(verdict, adapters=wanted_adapters(self._document, state.model))
        if state.phase is Phase.DRAINING:
            stay = self._stays.get(state.replica)
            return dataclasses.replace(verdict, patience_s=stay.patience_s if stay else None)
        return dataclasses.replace(verdict, leave=self._drains.leaves(state))

    async def report(self) -> FleetReport:
        """Report everything known, for people."""
        now_s = time.time()
        self._membership.expire(now_s)
        return FleetReport(
            fleet=str(self._document.get("fleet", "")),
            document=str(self._document.get("text", "")),
            at_s=now_s,
            replicas=self._membership.states(now_s),
            gateways=tuple(report.gateway for report in self._reports.values()),
            failures=self._membership.failures(),
            epoch=self._epoch,
            table_version=self._table_version(),
            problems=tuple(r.problem for r in self._reports.values() if r.problem),
            policy_digest=policy_digest(self._policy_document()),
            num_keys=len(self._document.get("policy", {}).get("keys", ())),
            partial=self._hold_off.holds(time.monotonic()),
            updating={model: entry["digest"] for model, entry in self._document.get("rollouts", {}).items()},
            planned=self._document.get("planned", {}),
            taken_back={model: tuple(entry) for model, entry in self._document.get("taken_back", {}).items()},
        )

    async def end_nodes(self) -> int:
        """End gateways, zygotes and daemons of all nodes; returns how many nodes answered."""
        self._stopping = True
        for task in (*self._loops, *self._nodes.values()):
            task.cancel()
        return await self._end_daemons()

    def _table_version(self) -> int:
        return self._table(time.time()).version

    def _table(self, now_s: float) -> EndpointTable:
        self._stays = self._leaving.look(self._membership.states(now_s), self._leave_rules, now_s)
        moving = [replica for replica, stay in self._stays.items() if stay.moving]
        return self._membership.table(self._models(), now_s, moving)

    def _leave_rules(self, model: str) -> LeaveRules:
        """Return how long responses may take to end: as the file says, or only briefly where the model was removed."""
        rules = self._document.get("updates", {}).get(model)
        return LeaveRules(drain_s=rules["drain_s"], limit_s=rules["limit_s"]) if rules else LeaveRules()

    def _models(self) -> tuple[str, ...]:
        return tuple(self._document.get("models", ()))

    def _policy_document(self) -> bytes:
        num_gateways = len(self._nodes)
        if self._policy is None or self._policy[0] != num_gateways:
            self._policy = num_gateways, policy_document(self._document.get("policy", {}), num_gateways)
        return self._policy[1]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _follow_nodes(self) -> None:
        while True:
            try:
                alive = await asyncio.to_thread(_alive_nodes)
            except Exception as error:
                log.warning("cannot list the nodes: %r", error)
                alive = set(self._nodes)
            for node_id in alive - set(self._nodes):
                self._nodes[node_id] = asyncio.create_task(self._follow_node(node_id))
            for node_id in set(self._nodes) - alive:
                self._nodes.pop(node_id).cancel()
                self._reports.pop(node_id, None)
            await asyncio.sleep(ORDER_EVERY_S)

    async def _follow_node(self, node_id: str) -> None:
        """Order one node again and again. Each node has its own loop, so a silent node delays no other."""
        while not self._stopping:
            changed = self._changed
            if self._document:
                await self._order(node_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ORDER_EVERY_S):
                    await changed.wait()

    async def _order(self, node_id: str) -> None:
        try:
            daemon = await asyncio.wait_for(asyncio.to_thread(self._daemon_of, node_id), ORDER_TIMEOUT_S)
            answer = daemon.order.remote(self._node_order(node_id))
            self._reports[node_id] = await asyncio.wait_for(answer, ORDER_TIMEOUT_S)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.warning("node %s does not take orders: %r", node_id[:8], error)
            self._reports[node_id] = _silent(node_id, self._reports.get(node_id), error)

    def _node_order(self, node_id: str) -> NodeOrder:
        now_s = time.time()
        self._membership.expire(now_s)
        gateway = self._document["gateway"]
        table = dataclasses.replace(self._table(now_s), partial=self._hold_off.holds(time.monotonic()))
        demands = {node: report.gateway.tenant_demands for node, report in self._reports.items()}
        return NodeOrder(
            fleet=str(self._document["fleet"]),
            epoch=self._epoch,
            table=self._slot_shares.table_for(node_id, table, self._nodes, demands, time.monotonic()),
            table_is_old=False,
            gateway=GatewaySettings(**gateway),
            warm=tuple(WarmEnvironment(**entry) for entry in self._document.get("warm", ())),
            policy=self._policy_document(),
            drained=self._drains.is_drained(node_id),
        )

    async def _follow_rollouts(self) -> None:
        """See updates to their end: the command that began one may have ended."""
        while True:
            await asyncio.sleep(ROLL_EVERY_S)
            try:
                for step in self._rollouts.steps(self._membership.states(time.time()), time.monotonic()):
                    await asyncio.to_thread(_carry_out, step, str(self._document["dashboard"]))
            except Exception as error:  # a task root: the next turn tries again
                log.warning("an update cannot be followed: %r", error)

    async def _end_daemons(self) -> int:
        ended = await asyncio.gather(*(self._end_daemon(node_id) for node_id in self._nodes), return_exceptions=True)
        return sum(1 for answer in ended if answer is True)


def _carry_out(step: Step, dashboard: str) -> None:
    from longboat.cluster.fleet.rollout_values import document_after
    from longboat.cluster.fleet.serve_rest import ServeRest
    from longboat.cluster.host.cluster_token import cluster_token

    rest = ServeRest(dashboard, cluster_token(os.environ, Path.home()))
    document = document_after(rest.details().get("applications", {}), step)
    if document is not None:
        log.warning("update of %s to %s: %s %s", step.model, step.digest, step.kind.value, step.why)
        rest.put(document)


def _alive_nodes() -> set[str]:
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _silent(node_id: str, last: NodeReport | None, error: Exception) -> NodeReport:
    gateway = last.gateway if last else None
    return NodeReport(
        gateway=GatewayReport(
            node_id=node_id,
            address=gateway.address if gateway else "",
            hostname=gateway.hostname if gateway else "",
            url=gateway.url if gateway else "",
            pid=gateway.pid if gateway else None,
            table_version=gateway.table_version if gateway else 0,
            policy_digest=gateway.policy_digest if gateway else "",
            problem=f"node does not answer ({type(error).__name__})",
        )
    )
