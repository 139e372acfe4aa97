"""Several gateway processes on one port: their parent starts them, feeds them, reports for them and replaces them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.core.errors import EngineError, UserInputError
from longboat.core.policy import Policy
from longboat.core.states import EndpointTable
from longboat.gateway.admin.control_socket import ControlServer
from longboat.gateway.admin.node_aggregate import NodeAggregate
from longboat.gateway.config import SWEEP_S, GatewayConfig
from longboat.gateway.process.quota_shares import QuotaShares
from longboat.gateway.process.server import listen_error, stop_on_signals
from longboat.gateway.process.worker import Worker, remove_indexes
from longboat.gateway.process.worker_feed import WorkerFeed
from longboat.routing.capacity.shares import read_demands, written_demands
from longboat.telemetry import Guard, logger

__all__ = ("WorkerParent", "supervise_workers")

log = logger("gateway")

_RESTART_PAUSE_S = 0.2
_SHARE_EVERY_S = 1.0
_SUMMED = ("in_flight", "waiting", "requests_total", "connections", "held_bytes", "log_lines_dropped")


class WorkerReports:
    """The workers' reports of their state. A worker whose report shows that it missed something is fed."""

    def __init__(self, workers: list[Worker], feed: WorkerFeed) -> None:
        self._workers = workers
        self._feed = feed
        # requests of processes that ended
        self._finished_total = 0
        # requests by process, as last reported
        self._last_total: dict[int, int] = {}

    async def collect(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the reports, and the names of the workers that do not reply."""
        replies = await asyncio.gather(*(worker.asked.state() for worker in self._workers), return_exceptions=True)
        by_worker = list(zip(self._workers, replies, strict=True))
        found = [(worker, reply) for worker, reply in by_worker if isinstance(reply, dict)]
        for worker, report in found:
            self._last_total[report["pid"]] = report["requests_total"]
            self._feed.shares.set_demands(worker.name, report.get("tenant_demands", {}))
        behind = [worker for worker, report in found if self._feed.is_behind(report)]
        await asyncio.gather(*(self._feed.feed(worker) for worker in behind))
        return [report for _, report in found], [
            worker.name for worker, reply in by_worker if not isinstance(reply, dict)
        ]

    async def summary(self) -> dict[str, Any]:
        """Add up the workers' reports."""
        reports, missing = await self.collect()
        total: dict[str, Any] = {name: sum(report.get(name, 0) for report in reports) for name in _SUMMED}
        total["requests_total"] += self._finished_total
        demands: Counter[str] = Counter()
        lost: dict[str, str] = {}
        for report in reports:
            demands.update(report.get("demands", {}))
            lost.update(report.get("lost", {}))
        return {
            **total,
            "demands": dict(demands),
            "ready": min([report.get("ready", 0) for report in reports], default=0),  # endpoints that all may use
            "lost": lost,
            "tenant_demands": written_demands(read_demands(*(r.get("tenant_demands", {}) for r in reports))),
            "model_counts": {pid: counts for r in reports for pid, counts in r.get("model_counts", {}).items()},
            "watched": any(report.get("watched") for report in reports),
            "missing": missing,
            "processes": [worker.pid for worker in self._workers if worker.pid is not None],
        }

    def ended(self, worker: Worker, pid: int) -> None:
        """Keep the count of a process that ended, and drop its demands."""
        self._finished_total += self._last_total.pop(pid, 0)
        self._feed.shares.set_demands(worker.name, {})


class WorkerParent:  # size: the control socket asks it for all workers, which it starts, feeds and replaces
    """Owns the workers. Answers the control socket for all of them."""

    def __init__(self, config: GatewayConfig, held: socket.socket, clock: Clock = WALL) -> None:
        """Keep the parts. held: the bound socket that keeps the port for the workers; ``stop`` closes it."""
        self._held = held
        port = held.getsockname()[1]
        self._config = config.replaced(port=port)
        self._clock = clock
        self._workers = [Worker(config, index, port) for index in range(config.processes)]
        self._feed = WorkerFeed(config, self._workers, clock)
        self._reports = WorkerReports(self._workers, self._feed)
        controls = {worker.name: worker.asked for worker in self._workers}
        self.answers = NodeAggregate(controls)
        self._quotas = QuotaShares(controls, clock)
        self._quotas.set_policy(config.policy or Policy())
        # when the gateway started, and when its owner last called
        self._started_s = self._contact_s = clock.monotonic_s()
        self._tasks: list[asyncio.Task[None]] = []
        # worker → the call that waits for what its requests wake
        self._waking: dict[str, asyncio.Future[list[str]]] = {}
        self._stop_task: asyncio.Task[None] | None = None
        self.stopped = asyncio.Event()

    async def start(self) -> None:
        """Start all workers. Raise UserInputError or EngineError where one does not start; the others are ended."""
        if self._config.state_folder is not None:
            self._quotas.restore_today(Path(self._config.state_folder) / "usage.sqlite")
        remove_indexes(self._config)
        try:
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except BaseException:
            self._kill_all()
            raise
        await self._quotas.divide()
        work = (*map(self._keep, self._workers), self._watch_contact(), self._follow_demands())
        self._tasks = [asyncio.get_running_loop().create_task(part) for part in work]

    # the control socket's calls

    async def offer_table(self, epoch: str, table: EndpointTable) -> bool:
        if not self._feed.offer_table(epoch, table):
            return False
        await self._feed.feed_all()
        return True

    async def offer_policy(self, document: bytes) -> bool:
        self._quotas.set_policy(self._feed.set_policy(document))
        await self._quotas.divide()
        await self._feed.feed_all()
        return True

    async def offer_view(self, document: bytes) -> None:
        await asyncio.gather(*(worker.asked.put_view(document) for worker in self._workers), return_exceptions=True)

    async def report(self) -> dict[str, Any]:
        summary = await self._reports.summary()
        rules = self._feed.rules
        return {
            "pid": os.getpid(),
            "version": rules.version,
            "epoch": rules.epoch,
            "host": self._config.host,
            "port": self._config.port,
            "fleet": self._config.fleet,
            "node": self._config.node,
            "uptime_s": round(self._clock.monotonic_s() - self._started_s, 3),
            "draining": self._feed.draining,
            "stopping": self._stop_task is not None,
            "models": list(rules.models),
            "policy_digest": self._feed.policy_digest,
            **summary,
        }

    async def wakes(self, timeout_s: float) -> list[str]:
        """Return the sleeping models that requests asked for, as soon as one worker has one.

        The calls to the other workers stay, so that what they return is not lost.
        """
        for worker in self._workers:
            if worker.name not in self._waking:
                self._waking[worker.name] = asyncio.ensure_future(worker.control.wakes())
        done, _ = await asyncio.wait(self._waking.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        self._waking = {name: call for name, call in self._waking.items() if call not in done}
        return sorted({model for call in done if call.exception() is None for model in call.result()})

    async def leases(self, document: bytes) -> Mapping[str, Any]:
        """Divide the limits now: a worker lacks room."""
        await self._quotas.divide()
        return {}

    async def drain(self) -> None:
        self._feed.draining = True
        await self._feed.feed_all()

    async def undrain(self) -> None:
        self._feed.draining = self._stop_task is not None
        await self._feed.feed_all()

    def stop(self, deadline_s: float | None = None) -> None:
        if self._stop_task is None:
            self._held.close()  # a successor may take the port while old requests end
            self._feed.draining = True
            limit_s = self._config.limits.stop_deadline_s if deadline_s is None else deadline_s
            self._stop_task = asyncio.get_running_loop().create_task(self._stop(limit_s))

    def heard(self) -> None:
        self._contact_s = self._clock.monotonic_s()

    # the workers

    async def _keep(self, worker: Worker) -> None:
        """Start the worker again whenever it ends."""
        while True:
            assert worker.process is not None
            pid = worker.process.pid
            await worker.process.wait()
            self._reports.ended(worker, pid)
            if self._stop_task is not None:
                return
            log.warning("worker %d ended (%s); starting another", pid, worker.process.returncode)
            worker.fed = None
            self._quotas.ended(worker.name)
            await asyncio.sleep(_RESTART_PAUSE_S)
            try:
                await worker.start(self._feed.policy)
                await self._quotas.divide()
                await self._feed.feed(worker)
            except (EngineError, UserInputError):
                pass  # the worker printed why; the loop tries again
            except Exception:  # no memory or no process left for it, say: the loop tries again, too
                log.exception("worker %s did not start; trying again", worker.name)
                worker.kill()

    async def _follow_demands(self) -> None:
        """Divide the node's slots and limits once a second."""
        guard = Guard(log, "the division of slots and limits")
        while self._stop_task is None:
            await asyncio.sleep(_SHARE_EVERY_S)
            with guard:
                await self._reports.collect()
                await asyncio.gather(self._quotas.divide(), self._feed.feed_shares())

    async def _watch_contact(self) -> None:
        """Stop when the owner has been silent for too long."""
        grace_s = self._config.orphan_grace_s
        while grace_s is not None:
            await asyncio.sleep(SWEEP_S)
            if self._clock.monotonic_s() - self._contact_s > grace_s:
                self.stop()
                return

    async def _stop(self, deadline_s: float) -> None:
        calls = (worker.control.stop(deadline_s) for worker in self._workers)
        await asyncio.gather(*calls, return_exceptions=True)
        alive = [worker.process.wait() for worker in self._workers if worker.process is not None]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*alive), deadline_s + 5.0)
        self._kill_all()
        remove_indexes(self._config)
        self.stopped.set()

    def _kill_all(self) -> None:
        for worker in self._workers:
            worker.kill()


async def supervise_workers(config: GatewayConfig, announce: Any) -> None:
    """Run ``config.processes`` workers until stopped. Call ``announce(port)`` when all of them listen.

    Raise UserInputError where the port or the control socket cannot be used.
    """
    with _reserve(config.host, config.port) as held:
        port = held.getsockname()[1]
        parent = WorkerParent(config, held)
        control = ControlServer(parent, config.control_socket, config.control_token)
        await control.start()
        try:
            await parent.start()
            stop_on_signals(parent.stop)
            announce(port)
            await parent.stopped.wait()
        finally:
            await control.close()


def _reserve(host: str, port: int) -> socket.socket:
    """Bind a socket that never listens: it keeps the port for the workers while they come and go.

    The port is first tried without SO_REUSEPORT, which would share another gateway's port in silence.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((host, port))
            port = alone.getsockname()[1]
        held = socket.socket(family, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a gateway before linger
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError as error:
        raise listen_error(host, port, error) from error
    return held
