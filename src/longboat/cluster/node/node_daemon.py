"""NodeDaemon: one actor per node; it keeps the node's gateway running and fed, its zygotes warm, and reads its logs."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

from longboat.cluster.gang.agent import read_tail
from longboat.cluster.node.gateway_process import GatewayProcess
from longboat.cluster.protocol.messages import GatewayReport, NodeOrder, NodeReport, WarmEnvironment
from longboat.core.errors import ClusterError, LongboatError
from longboat.folders import run_folder
from longboat.telemetry import logger

__all__ = ("NodeDaemon",)

log = logger("daemon")

HOLD_EVERY_S = 2.0


class NodeDaemon:
    """The daemon of one node. It outlives its controller; the next daemon adopts its gateway and zygotes."""

    def __init__(self) -> None:
        import ray

        from longboat.cluster.host.facts import node_address

        self._node_id: str = ray.get_runtime_context().get_node_id()
        self._address: str = node_address()
        self._run = run_folder()
        self._gateway = GatewayProcess(self._run / "gateway", self._node_id, self._address)
        self._warming: dict[WarmEnvironment, asyncio.Task[str]] = {}
        self._lock = asyncio.Lock()
        self._order: NodeOrder | None = None
        self._past_epochs: set[str] = set()
        self._holding: asyncio.Task[None] | None = None

    async def order(self, order: NodeOrder) -> NodeReport:
        """Make this node what the controller wants; never raises for a fault of this node alone."""
        async with self._lock:
            self._refuse_past(order.epoch)
            self._order = order
            self._holding = self._holding or asyncio.create_task(self._hold())
            self._keep_warm(order.warm)
            try:
                gateway = await self._gateway.ensure(order)
            except LongboatError as error:
                gateway = self._report(order, str(error))
            return NodeReport(gateway=gateway, zygotes=self._warm_names())

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
                if self._order is None:
                    continue
                try:
                    await self._gateway.ensure(dataclasses.replace(self._order, table_is_old=True))
                except Exception as error:  # a task root: holding must go on
                    log.warning("the gateway cannot be held: %r", error)

    async def shutdown(self) -> None:
        """Stop the gateway and the zygotes of this node."""
        if self._holding:
            self._holding.cancel()
        async with self._lock:
            self._order = None
            for task in self._warming.values():
                task.cancel()
            await self._gateway.stop()
            await asyncio.to_thread(_stop_zygotes, self._run)

    async def ask_gateway(self, query: bytes) -> dict[str, Any]:
        """Ask this node's gateway (see ``GatewayProcess.ask``)."""
        return await self._gateway.ask(query)

    async def read_log(
        self, model: str, replica: str, node_rank: int, offset: int | None, num_lines: int
    ) -> tuple[int, str]:
        """Read a rank's log from byte ``offset`` on (None: the last ``num_lines``); return text and next offset.

        Raises ClusterError when there is no such log on this node.
        """
        path = self._log_file(model, replica, node_rank)
        if offset is None:
            return path.stat().st_size, "\n".join(read_tail(path, num_lines))
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(1 << 20)
        return offset + len(data), data.decode(errors="replace")

    async def list_logs(self, model: str) -> tuple[tuple[str, int, float], ...]:
        """(replica, node rank, time of last change) of every log of ``model`` on this node, newest first."""
        folder = self._log_folder(model)
        found = [
            (p.parent.name, int(p.stem.removeprefix("rank")), p.stat().st_mtime) for p in folder.glob("*/rank*.log")
        ]
        return tuple(sorted(found, key=lambda entry: -entry[2]))

    def _log_folder(self, model: str) -> Path:
        if "/" in model or model.startswith("."):
            raise ClusterError(f"{model!r} is not the name of a model", hint="longboat status lists the models")
        return self._run / "logs" / model

    def _log_file(self, model: str, replica: str, node_rank: int) -> Path:
        if "/" in replica or replica.startswith("."):
            raise ClusterError(f"{replica!r} is not the name of a replica", hint="longboat status lists the replicas")
        path = self._log_folder(model) / replica / f"rank{node_rank}.log"
        if not path.is_file():
            raise ClusterError(f"node {socket.gethostname()} has no log of {model}/{replica} rank {node_rank}")
        return path

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
            table_version=order.table.version,
            problem=problem,
        )


def _stop_zygotes(run: Path) -> None:
    from longboat.engines.launch.zygote_client import stop_all

    stop_all(run)
