"""NodeDaemon: one actor per node; it keeps the node's gateway running and fed, its zygotes warm, and reads its logs."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat.cluster.node.answers import FORWARDED, Answers
from longboat.cluster.node.door import CommandDoor
from longboat.cluster.node.gateway_process import GatewayProcess
from longboat.cluster.node.log_bounds import CHECK_EVERY_S, bound_logs
from longboat.cluster.node.node_relay import NodeRelay
from longboat.cluster.node.rank_logs import list_logs, read_log
from longboat.cluster.protocol.messages import GatewayReport, NodeOrder, NodeReport, WarmEnvironment, WeightsReport
from longboat.cluster.weights.member import WeightsMember
from longboat.core.errors import ClusterError, LongboatError
from longboat.folders import home_folder, run_folder
from longboat.telemetry import logger

if TYPE_CHECKING:
    from longboat.cluster.preflight.checks import NodeFindings, PreflightRequest

__all__ = ("NodeDaemon",)

log = logger("daemon")

HOLD_EVERY_S = 2.0


class NodeDaemon:  # size: one method for each order and question, and what a node keeps running
    """The daemon of one node. It outlives its controller; the next daemon adopts its gateway and zygotes."""

    def __init__(self) -> None:
        import ray

        from longboat.cluster.host.facts import node_address, node_labels

        self._node_id: str = ray.get_runtime_context().get_node_id()
        self._address: str = node_address()
        self._run = run_folder()
        self._gateway = GatewayProcess(self._run / "gateway", self._node_id, self._address)
        self._relay = NodeRelay(self._address)
        self._weights = WeightsMember(home_folder(), self._run, self._address, node_labels())
        self._warming: dict[WarmEnvironment, asyncio.Task[str]] = {}
        self._answers = Answers(self._node_id, {name: getattr(self, name) for name in FORWARDED})
        self._door = CommandDoor(self._run, self._answers.all)
        self._lock = asyncio.Lock()
        self._order: NodeOrder | None = None
        self._ordered_s = 0.0
        self._past_epochs: set[str] = set()
        self._holding: asyncio.Task[None] | None = None
        self._bounding: asyncio.Task[None] | None = None

    async def order(self, order: NodeOrder) -> NodeReport:
        """Make this node what the controller wants; never raises for a fault of this node alone."""
        async with self._lock:
            self._refuse_past(order.epoch)
            self._order, self._ordered_s = order, time.monotonic()
            self._answers.take(order)
            await self._open_door()
            self._holding = self._holding or asyncio.create_task(self._hold())
            self._bounding = self._bounding or asyncio.create_task(_keep_bounds(self._run))
            self._keep_warm(order.warm)
            try:
                gateway = await self._gateway.ensure(order)
            except (LongboatError, OSError, subprocess.SubprocessError) as error:  # a TimeoutError is an OSError
                gateway = self._report(order, _problem(error))
            await self._relay.follow(self._gateway.tables.table)
            return NodeReport(
                gateway=gateway,
                zygotes=self._warm_names(),
                weights=await self._share(order),
                relay=self._relay.address,
                relay_key=self._relay.key,
                unwell=self._relay.unwell,
            )

    async def _open_door(self) -> None:
        """Let commands of this machine in. Where a full disk refuses that, the node serves, and commands use Ray."""
        try:
            await self._door.open()
        except OSError as error:
            log.warning("this node's daemon cannot be asked by commands: %s", error)

    async def _share(self, order: NodeOrder) -> WeightsReport | None:
        """Take this node's place in the swarm of weights; a node that cannot share still serves."""
        try:
            return await self._weights.report(order.weights)
        except (LongboatError, OSError) as error:
            log.warning("this node cannot share weights: %s", error)
            return None

    def _refuse_past(self, epoch: str) -> None:
        """Refuse the orders of an older controller that comes back from a partition."""
        if epoch in self._past_epochs:
            raise ClusterError("a newer controller is in charge of this node")
        if self._order is not None and self._order.epoch != epoch:
            self._past_epochs.add(self._order.epoch)

    async def _hold(self) -> None:
        """Keep the gateway, as last ordered, while no controller can be heard: with the head lost, nodes serve on."""
        while True:
            await asyncio.sleep(HOLD_EVERY_S)
            async with self._lock:
                if self._order is None or time.monotonic() - self._ordered_s < HOLD_EVERY_S:
                    continue
                try:
                    await self._gateway.ensure(dataclasses.replace(self._order, table_is_old=True))
                except Exception as error:  # a task root: holding must go on
                    log.warning("the gateway cannot be held: %r", error)

    async def shutdown(self) -> None:
        """Stop the gateway and the zygotes of this node."""
        self._door.close()
        for loop in (self._holding, self._bounding):
            if loop:
                loop.cancel()
        async with self._lock:
            self._order = None
            for task in self._warming.values():
                task.cancel()
            self._relay.close()
            await self._weights.end()
            await self._gateway.stop()
            await asyncio.to_thread(_stop_zygotes, self._run)

    async def ask_gateway(self, query: bytes | str) -> dict[str, Any]:
        """Ask this node's gateway (see ``GatewayProcess.ask``)."""
        return await self._gateway.ask(query.encode() if isinstance(query, str) else query)

    async def wakes(self) -> list[str]:
        """Wait for requests of sleeping models at this node's gateway (see ``GatewayProcess.wakes``)."""
        return await self._gateway.wakes()

    async def read_log(
        self, model: str, replica: str, node_rank: int, offset: int | None, num_lines: int
    ) -> tuple[int, str]:
        """Read a rank's log, as ``rank_logs.read_log`` does."""
        return read_log(self._run, model, replica, node_rank, offset, num_lines)

    async def list_logs(self, model: str) -> tuple[tuple[str, int, float], ...]:
        """List the logs of ``model`` on this node, as ``rank_logs.list_logs`` does."""
        return list_logs(self._run, model)

    async def list_weights(self) -> list[dict[str, Any]]:
        """List the weights in this node's home folder, as ``longboat weights list`` does."""
        return await asyncio.to_thread(_stored_weights)

    async def inspect(self, format_: tuple[str, ...], request: PreflightRequest) -> NodeFindings:
        """Look around on this node, as ``preflight.inspect_node`` does. Raises ClusterError for another version's."""
        from longboat.cluster.preflight.checks import FORMAT, inspect_node

        if format_ != FORMAT:
            raise ClusterError("this node's daemon is of another version")
        return await asyncio.to_thread(inspect_node, request)

    async def kill_rank(self, model: str, replica: str, node_rank: int) -> int:
        """SIGKILL a rank of this node, and return the number of processes. The controller decides who may ask."""
        from longboat.engines.launch.process import reap

        gang = {"LONGBOAT_RUN": str(self._run), "LONGBOAT_GANG": f"{model}/{replica}"}
        return len(await reap({**gang, "LONGBOAT_NODE_RANK": str(node_rank)}))

    def _keep_warm(self, wanted: tuple[WarmEnvironment, ...]) -> None:
        for environment in wanted:
            task = self._warming.get(environment)
            if task is None or task.done():
                self._warming[environment] = asyncio.create_task(self._warm(environment))

    async def _warm(self, wanted: WarmEnvironment) -> str:
        """Return the title of the zygote that is warm now, or why none is."""
        from longboat.cluster.host.launch import warm_environment

        try:
            await asyncio.sleep(0)
            return await warm_environment(wanted, self._run, lifeline_pid=os.getppid())
        except LongboatError as error:
            return f"none: {error}"

    def _warm_names(self) -> tuple[str, ...]:
        done = (task for task in self._warming.values() if task.done() and not task.cancelled())
        return tuple(task.result() for task in done if task.exception() is None)

    def _report(self, order: NodeOrder, problem: str) -> GatewayReport:
        return GatewayReport(
            node_id=self._node_id,
            address=self._address,
            hostname=socket.gethostname(),
            url="",
            pid=None,
            table_version=order.update.table.version,
            table_number=self._gateway.tables.known_in(order.epoch),
            problem=problem,
        )


def _problem(error: Exception) -> str:
    if isinstance(error, LongboatError):
        return str(error)
    return f"the gateway cannot be started or fed: {str(error) or type(error).__name__}"


async def _keep_bounds(run: Path) -> None:
    """Keep the logs of this node within their bounds."""
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        try:
            await asyncio.to_thread(bound_logs, run, time.time())
        except OSError as error:  # a task root: the next look may succeed
            log.warning("the logs in %s cannot be kept within their bounds: %s", run, error)


def _stored_weights() -> list[dict[str, Any]]:
    import msgspec

    from longboat.weights.store.store import Store

    found: list[dict[str, Any]] = msgspec.to_builtins(Store(home_folder()).list())
    return found


def _stop_zygotes(run: Path) -> None:
    from longboat.engines.launch.zygote_client import stop_all

    stop_all(run)
