"""Several gateway processes on one port: a parent that starts them, feeds them, counts for them, replaces them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.core.errors import ClusterError, EngineError, UserInputError
from longboat.core.policy import Policy
from longboat.core.states import EndpointTable
from longboat.gateway.admin.control_client import GatewayControl, gateway_command
from longboat.gateway.admin.control_socket import ControlServer
from longboat.gateway.admin.node_aggregate import NodeAggregate
from longboat.gateway.config import GatewayConfig, encode_config
from longboat.gateway.limits.policy_view import decode_policy, digest_of_policy
from longboat.gateway.process.quota_shares import QuotaShares
from longboat.gateway.process.server import SWEEP_S, listen_error, stop_on_signals
from longboat.gateway.process.worker_shares import WorkerShares
from longboat.gateway.upstreams.table import LiveTable
from longboat.routing.capacity.shares import read_demands, written_demands
from longboat.telemetry import logger

__all__ = ("Worker", "WorkerParent", "follow_parent", "supervise_workers")

log = logger("gateway")

_START_TIMEOUT_S = 20.0
_RESTART_PAUSE_S = 0.2
_PR_SET_PDEATHSIG = 1
_FEED_TIMEOUT_S = 2.0  # a worker that hangs must not hold up the others' tables
_SHARE_EVERY_S = 1.0
_ASK_TIMEOUT_S = 1.0  # for what a worker is only asked; what it must learn has longer
_SUMMED = ("in_flight", "waiting", "requests_total", "connections", "held_bytes", "log_lines_dropped")


def follow_parent(parent_pid: int) -> None:
    """Make this worker end (gracefully) when its parent does, however the parent ends.

    :raises ClusterError: the parent has ended already
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        raise ClusterError("the parent of this worker has ended", hint="start the gateway again")


class Worker:
    """One worker process, started again by its parent when it ends."""

    def __init__(self, config: GatewayConfig, index: int, port: int) -> None:
        path = f"{config.control_socket}.{index}"
        self._config = config.replaced(
            port=port,
            worker_index=index,
            parent_pid=os.getpid(),
            parent_socket=config.control_socket,
            control_socket=path,
            orphan_grace_s=None,
        )
        self.name = f"worker-{index}"
        self.control = GatewayControl(path, config.control_token)
        self.asked = GatewayControl(path, config.control_token, timeout_s=_ASK_TIMEOUT_S)
        self.process: asyncio.subprocess.Process | None = None
        self.feeding = asyncio.Lock()  # what is told last must be what is newest
        self.told: tuple[str, EndpointTable] | None = None  # the table that it took

    async def start(self, policy: Policy | None = None) -> None:
        """Returns when it listens. :raises EngineError: it did not within 20 s; UserInputError: it must not.

        policy: in place of the configured one, so that a replaced worker never serves by an older one
        """
        config = self._config if policy is None else self._config.replaced(policy=policy)
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*gateway_command(), stdin=pipe, stdout=pipe)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(encode_config(config))
        self.process.stdin.close()
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), _START_TIMEOUT_S)
        except TimeoutError as error:
            self.process.kill()
            raise EngineError("a gateway worker did not start in time", hint="see its messages above") from error
        if not line or orjson.loads(line)["event"] != "listening":
            raise UserInputError("a gateway worker could not start", hint="see its message above")


class WorkerParent:
    """Owns the workers. Answers the control socket for all of them."""

    def __init__(self, config: GatewayConfig, port: int, clock: Clock = WALL) -> None:
        self._config = config
        self._port = port
        self._clock = clock
        self._workers = [Worker(config, index, port) for index in range(config.processes)]
        self.answers = NodeAggregate({worker.name: worker.asked for worker in self._workers})
        self._epoch: str | None = None
        self._shares = WorkerShares([worker.name for worker in self._workers])
        self._quotas = QuotaShares({worker.name: worker.asked for worker in self._workers}, clock)
        self._quotas.set_policy(config.policy or Policy())
        self._policy: bytes | None = None
        self._rules = LiveTable(config.limits, clock=clock)
        self._started_s = self._contact_s = clock.monotonic_s()
        self._draining = self._stopping = False
        self._finished_total = 0  # requests of workers that ended
        self._last_seen: dict[int, int] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stop_task: asyncio.Task[None] | None = None
        self.stopped = asyncio.Event()

    async def start(self) -> None:
        """Start all workers. :raises UserInputError, EngineError: one of them did not start; the others are ended."""
        if self._config.state_folder is not None:
            self._quotas.restore_today(Path(self._config.state_folder) / "usage.sqlite")
        try:
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except BaseException:
            self._signal_all(signal.SIGKILL)
            raise
        await self._quotas.divide()
        loop = asyncio.get_running_loop()
        self._keepers = [loop.create_task(self._keep(worker)) for worker in self._workers]
        self._keepers.append(loop.create_task(self._watch_contact()))
        self._keepers.append(loop.create_task(self._follow_demands()))

    # what the control socket asks for

    async def offer_table(self, epoch: str, table: EndpointTable) -> bool:
        if not self._rules.offer(epoch, table):
            return False
        self._epoch = epoch
        self._shares.set_table(self._rules.table or table)
        await self._feed_all()
        return True

    async def offer_policy(self, document: bytes) -> bool:
        self._quotas.set_policy(decode_policy(document))  # a worker gets no policy that cannot be read
        self._policy = document
        await self._quotas.divide()
        await self._feed_all()
        return True

    async def report(self) -> dict[str, Any]:
        reports, missing = await self._reports()
        total: dict[str, Any] = {name: sum(r.get(name, 0) for r in reports) for name in _SUMMED}
        total["requests_total"] += self._finished_total
        return {
            "pid": os.getpid(),
            "version": self._rules.version,
            "epoch": self._rules.epoch,
            "host": self._config.host,
            "port": self._port,
            **total,
            "fleet": self._config.fleet,
            "node": self._config.node,
            "uptime_s": round(self._clock.monotonic_s() - self._started_s, 3),
            "draining": self._draining,
            "stopping": self._stopping,
            "models": list(self._rules.models),
            "policy_digest": digest_of_policy(self._policy) if self._policy is not None else "",
            "demands": _added(report.get("demands", {}) for report in reports),
            "tenant_demands": written_demands(read_demands(*(r.get("tenant_demands", {}) for r in reports))),
            "missing": missing,
            "processes": [w.process.pid for w in self._workers if w.process and w.process.returncode is None],
        }

    async def leases(self, document: bytes) -> Mapping[str, Any]:
        """Divide the limits now: a worker lacks room."""
        await self._quotas.divide()
        return {}

    async def drain(self) -> None:
        self._draining = True
        await self._feed_all()

    async def undrain(self) -> None:
        self._draining = self._stopping
        await self._feed_all()

    def stop(self, deadline_s: float | None = None) -> None:
        if self._stop_task is None:
            self._stopping = self._draining = True
            limit_s = self._config.limits.stop_deadline_s if deadline_s is None else deadline_s
            self._stop_task = asyncio.get_running_loop().create_task(self._stop(limit_s))

    def heard(self) -> None:
        self._contact_s = self._clock.monotonic_s()

    # the workers

    async def _keep(self, worker: Worker) -> None:
        while True:
            assert worker.process is not None
            pid = worker.process.pid
            await worker.process.wait()
            self._finished_total += self._last_seen.pop(pid, 0)
            if self._stopping:
                return
            log.warning("worker %d ended (%s); starting another", pid, worker.process.returncode)
            worker.told = None
            self._shares.set_demands(worker.name, {})
            self._quotas.ended(worker.name)
            await asyncio.sleep(_RESTART_PAUSE_S)
            with contextlib.suppress(EngineError, UserInputError):  # it said why; the next turn tries again
                await worker.start(None if self._policy is None else decode_policy(self._policy))
                await self._quotas.divide()
                await self._feed(worker)

    async def _feed_all(self) -> None:
        await asyncio.gather(*(self._feed(worker) for worker in self._workers))

    async def _feed(self, worker: Worker) -> None:
        """Bring one worker to where the others are. One that ends, or hangs, gets it all later.

        Policy before table: who may ask is known before there is anything to ask.
        """
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(_FEED_TIMEOUT_S), worker.feeding:
                if self._policy is not None:
                    await worker.control.put_policy(self._policy)
                await self._put_table(worker)
                await (worker.control.drain() if self._draining else worker.control.undrain())

    async def _put_table(self, worker: Worker) -> None:
        table = self._shares.table_of(worker.name)
        if self._epoch is not None and table is not None:
            told = (self._epoch, table)
            worker.told = None  # until it answers, nobody knows which it has
            await worker.control.put_table(*told)
            worker.told = told

    async def _follow_demands(self) -> None:
        """Divide the node's slots and limits once a second, and feed those workers whose part changed."""
        while not self._stopping:
            await asyncio.sleep(_SHARE_EVERY_S)
            await self._reports()
            self._shares.divide()
            await asyncio.gather(self._quotas.divide(), *(self._put_share(worker) for worker in self._workers))

    async def _put_share(self, worker: Worker) -> None:
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(_FEED_TIMEOUT_S), worker.feeding:
                if worker.told != (self._epoch, self._shares.table_of(worker.name)):
                    await self._put_table(worker)

    def _is_behind(self, report: Mapping[str, Any]) -> bool:
        """Whether a worker missed what it was fed."""
        if self._epoch is not None and (report["epoch"], report["version"]) != (
            self._rules.epoch,
            self._rules.version,
        ):
            return True
        digest = "" if self._policy is None else digest_of_policy(self._policy)
        return bool(digest and report.get("policy_digest") != digest) or report["draining"] != self._draining

    async def _reports(self) -> tuple[list[dict[str, Any]], list[str]]:
        """What each worker says of itself, and the names of those that say nothing."""
        answers = await asyncio.gather(*(w.asked.state() for w in self._workers), return_exceptions=True)
        reports = [answer for answer in answers if isinstance(answer, dict)]
        self._last_seen.update({report["pid"]: report["requests_total"] for report in reports})
        by_worker = list(zip(self._workers, answers, strict=True))
        for worker, answer in by_worker:
            if isinstance(answer, dict):
                self._shares.set_demands(worker.name, answer.get("tenant_demands", {}))
        behind = [worker for worker, answer in by_worker if isinstance(answer, dict) and self._is_behind(answer)]
        await asyncio.gather(*(self._feed(worker) for worker in behind))
        return reports, [worker.name for worker, answer in by_worker if not isinstance(answer, dict)]

    async def _watch_contact(self) -> None:
        grace_s = self._config.orphan_grace_s
        while grace_s is not None:
            await asyncio.sleep(SWEEP_S)
            if self._clock.monotonic_s() - self._contact_s > grace_s:
                self.stop()
                return

    async def _stop(self, deadline_s: float) -> None:
        calls = (w.control.stop(deadline_s) for w in self._workers)
        await asyncio.gather(*calls, return_exceptions=True)
        alive = [w.process.wait() for w in self._workers if w.process is not None]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*alive), deadline_s + 5.0)
        self._signal_all(signal.SIGKILL)
        self.stopped.set()

    def _signal_all(self, number: int) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.send_signal(number)


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


async def supervise_workers(config: GatewayConfig, announce: Any) -> None:
    """Run ``config.processes`` workers until stopped. ``announce(port)`` is called when all of them listen.

    :raises UserInputError: the port or the control socket cannot be had
    """
    with _reserve(config.host, config.port) as held:
        parent = WorkerParent(config, held.getsockname()[1])
        control = ControlServer(parent, config.control_socket, config.control_token)
        await control.start()
        try:
            await parent.start()
            stop_on_signals(parent.stop)
            announce(held.getsockname()[1])
            await parent.stopped.wait()
        finally:
            await control.close()


def _reserve(host: str, port: int) -> socket.socket:
    """A bound socket that never listens: it keeps the port for our workers while they come and go.

    The port is first tried without SO_REUSEPORT, for with it another gateway's port would be shared in silence.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((host, port))
            port = alone.getsockname()[1]
        held = socket.socket(family, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError as error:
        raise listen_error(host, port, error) from error
    return held
