"""NodeAgent: owns one node rank of a gang: finds ports and files, starts the rank, watches it, ends it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat.cluster.gang.heartbeat_publisher import DOOR, OwnBeat
from longboat.cluster.gang.phases import LogPhases
from longboat.cluster.gang.rank_heartbeat import RankHeartbeat
from longboat.cluster.gang.rank_ports import RankPorts
from longboat.cluster.gang.revision import revision_of
from longboat.cluster.host.launch import reap_rank
from longboat.cluster.host.nic import interface_of, route_source
from longboat.cluster.protocol.messages import AgentFacts, RankHealth, RankLoss
from longboat.cluster.protocol.model import ServedModel
from longboat.cluster.usage.proc_usage import group_usage
from longboat.cluster.usage.rank_memory import rank_memory_bytes
from longboat.cluster.weights.adapter_copies import AdapterCopies
from longboat.core.errors import EngineError
from longboat.core.plan import GangPlan
from longboat.core.states import Phase, RankState
from longboat.engines.registry import adapter_for
from longboat.folders import home_folder, log_path, run_folder

if TYPE_CHECKING:
    from longboat.engines.launch.compiled import CompiledFolder
    from longboat.engines.launch.process import RankProcess
    from longboat.weights.fetch.node_weights import HeldWeights

__all__ = ("LEASE_S", "NodeAgent", "read_end", "read_tail")

LEASE_S = 10.0
"""A rank whose supervisor is silent for this long stops itself."""

KEEPER_LEASE_S = 15.0
"""A rank whose agent is silent for this long is ended by its keeper: an agent may be stopped, and does not see it."""

KEEPER_S = 5.0
"""How long a keeper may take to end its rank by force."""

CAUSE_LINES, TAIL_LINES = 600, 30
"""Lines of a log in which the cause of a rank's end is looked for, and that are shown where it is not found."""

MEMORY_FIRST_S, MEMORY_EVERY_S = 3.0, 15.0
USAGE_EVERY_S = 5.0
"""A supervisor renews every second; what ``longboat status`` shows of memory and CPU time may be this old."""


class NodeAgent:  # size: one method for each order of the supervisor, and one for each thing that it watches
    """The owner of one node rank. The gang's supervisor calls its methods; none blocks the loop.

    lease_s: None for an agent that lives in its supervisor's process, and dies with it
    """

    def __init__(self, model: ServedModel, node_rank: int, lease_s: float | None = LEASE_S) -> None:
        self._model = model
        self._node_rank = node_rank
        self._lease_s = lease_s
        self._renewed_at_s = time.monotonic()
        self._rank: RankProcess | None = None
        self._log: Path | None = None
        self._phases = LogPhases(adapter_for(model.engine.kind).phase_of)
        self._health = RankHealth(node_rank=node_rank, alive=False, rss_bytes=0, cpu_s=0.0)
        self._lost: asyncio.Future[RankLoss] | None = None
        self._ports = RankPorts()
        self._heartbeat = RankHeartbeat(node_rank, is_own=lease_s is None)
        self._measured_s = -USAGE_EVERY_S
        self._marks: dict[str, str] = {}
        self._is_stopped = False
        self._weights: HeldWeights | None = None  # pinned for as long as this agent lives
        self._compiled: CompiledFolder | None = None  # kept from eviction for as long as this agent lives
        self._adapters = AdapterCopies(home_folder())
        self._tasks: set[asyncio.Task[None]] = set()

    async def fetch(self) -> None:
        """Fetch the model to this node where it is not here. Raises TransferError or ClusterError."""
        from longboat.cluster.weights.here import hold_weights

        source, home, run = self._model.source, home_folder(), run_folder()
        self._weights = await asyncio.to_thread(hold_weights, source, home, run, self._go_on)

    def _go_on(self, _progress: object) -> None:
        """Let a fetch continue. Raises EngineError where the replica was stopped: what was fetched stays."""
        if self._is_stopped:
            raise EngineError("the replica was stopped while its weights were fetched")

    async def prepare(self, *, purposes: tuple[str, ...], peer: str | None) -> AgentFacts:
        """Say where this rank runs and find what it needs: free ports, the model's folder, the engine.

        peer: address of the gang's head; our address is the one the route to it leaves by.
        Raises UserInputError or ClusterError when the model or the engine is not on this node.
        """
        import ray

        from longboat.cluster.host.facts import engine_title, model_folder, node_address, visible_gpus

        context = ray.get_runtime_context()
        address = route_source(peer) if peer else node_address()
        model_path = (
            str(self._weights.path)
            if self._weights is not None
            else await asyncio.to_thread(model_folder, self._model.source, home_folder(), self._model.engine.kind)
        )
        engine = await asyncio.to_thread(engine_title, self._model.engine)
        return AgentFacts(
            node_id=context.get_node_id(),
            hostname=socket.gethostname(),
            address=address,
            interface=interface_of(address),
            pid=os.getpid(),
            gpu_ids=visible_gpus(),
            ports={**{name: self._ports.reserve(address) for name in purposes}, DOOR: self._heartbeat.listen(address)},
            model_path=model_path,
            engine=engine,
            revision="" if peer else await asyncio.to_thread(revision_of, self._model, model_path, engine),
        )

    async def start(self, plan: GangPlan) -> RankState:
        """Start this agent's rank of ``plan`` and keep its lease from now on.

        Raises EngineError when no process came up.
        """
        run = run_folder()
        self._log = await asyncio.to_thread(log_path, run, plan.model, plan.replica, self._node_rank)
        self._lost = asyncio.get_running_loop().create_future()
        rank = await self._start_rank(plan, run, self._log)
        if self._is_stopped:  # meanwhile: its supervisor counts it as ended
            rank.close()
            raise EngineError("the replica was stopped while its engine started")
        self._rank = rank
        self._phases.log = self._log
        self._renewed_at_s = time.monotonic()  # the lease starts here: the wait for a zygote does not count as silence
        await self._heartbeat.open(rank, plan)
        self._spawn(self._watch_exit())
        self._spawn(self._renew_keeper())
        if self._lease_s is not None:
            self._spawn(self._watch_lease(self._lease_s))
        self._spawn(self._follow_memory(plan))
        return _rank_state(plan, self._node_rank, rank, self._log)

    def know(self, plan: GangPlan) -> None:
        """Take the whole plan of the gang: the head's rank starts before the other ranks are known."""
        self._heartbeat.know(plan)

    async def phase_after(self, known: Phase) -> Phase:
        """Return the phase of this rank's start once it is another than ``known``, or after some seconds."""
        return await self._phases.after(known, lambda: self._is_stopped)

    async def stage(self, source: str, revision: str) -> str:
        """Put an adapter's contents on this node and return their folder. Raises UserInputError where it cannot."""
        return await asyncio.to_thread(self._adapters.use, source, revision)

    async def keep_adapters(self, revisions: tuple[str, ...]) -> None:
        """Let other revisions of adapters be removed from this node when their room is needed."""
        await asyncio.to_thread(self._adapters.keep, revisions)

    async def renew(self) -> RankHealth:
        """Note that the supervisor is alive, and say how the rank is."""
        now_s = self._renewed_at_s = time.monotonic()
        pid = self._rank.keeper_pid if self._rank else None
        if pid and now_s - self._measured_s >= USAGE_EVERY_S:
            self._measured_s, usage = now_s, group_usage(pid)
            self._health = dataclasses.replace(self._health, rss_bytes=usage.rss_bytes, cpu_s=usage.cpu_s)
        alive = self._rank is not None and not (self._lost and self._lost.done())
        return dataclasses.replace(self._health, alive=alive)

    @property
    def own_beat(self) -> OwnBeat | None:
        """The rank's heartbeat for a supervisor in this process; None where it is heard through a port."""
        return self._heartbeat.own_beat if self._lease_s is None else None

    async def wait_lost(self) -> RankLoss:
        """Return when the rank is gone, whatever ended it."""
        if self._lost is None:
            raise EngineError("the rank was never started", hint="call start() first")
        return await asyncio.shield(self._lost)

    async def stop(self, grace_s: float, *, on_request: bool = True) -> None:
        """End the rank: politely, and by force after ``grace_s`` seconds. Returns when no process of it is left.

        on_request: not because another rank crashed
        """
        self._is_stopped = True
        rank, self._rank = self._rank, None
        if rank is None:
            return
        self._heartbeat.end(on_request=on_request)
        if grace_s > 0:
            rank.terminate(grace_s)
        else:
            rank.kill()
        try:
            await asyncio.wait_for(rank.wait(), grace_s + KEEPER_S)
        except TimeoutError:  # a keeper that was stopped itself ends no process
            await reap_rank(self._marks)

    def kill(self) -> None:
        """End the rank at once, without waiting for it."""
        if self._rank is not None:
            self._rank.kill()

    async def _start_rank(self, plan: GangPlan, run: Path, log_path: Path) -> RankProcess:
        from longboat.cluster.host.launch import compiled_folder, rank_command, rank_marks, zygote_for
        from longboat.engines.launch.process import start_rank

        command, environment = await asyncio.to_thread(rank_command, self._model, plan, self._node_rank)
        self._compiled = await asyncio.to_thread(compiled_folder, plan, environment)
        if self._compiled is not None and environment is not None:
            adapter = adapter_for(environment.kind)
            places = adapter.compiled_env(plan, environment.platform, str(self._compiled.path))
            command = dataclasses.replace(command, env={**places, **command.env})
        marks = self._marks = rank_marks(plan, self._node_rank, run)
        try:
            preload_env = command.zygote.preload_env if command.zygote else None
            zygote = await zygote_for(self._model.engine, environment, preload_env, run)
            self._ports.release()
            return await start_rank(command, env_tags=marks, log_path=log_path, zygote=zygote)
        except (OSError, EngineError) as error:
            if command.zygote is None:
                raise
            self._ports.release()
            with log_path.open("a") as log:
                log.write(f"longboat: the zygote did not fork ({error}); starting plainly\n")
            return await start_rank(command, env_tags=marks, log_path=log_path, zygote=None)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_exit(self) -> None:
        """Report the end of the rank to the supervisor, whatever goes wrong here."""
        rank = self._rank
        assert rank is not None
        reason, on_request = "its end could not be seen", False
        try:
            ended = await rank.wait()
            reason, on_request = str(ended), ended.on_request
            if ended.returncode is None and ended.signal is None:
                await reap_rank(self._marks)
        except Exception as error:
            reason = f"{reason}: {error}"
        finally:
            self._report_lost(reason, on_request=on_request)

    async def _watch_lease(self, lease_s: float) -> None:
        """End the rank when the supervisor is silent: the gang is then broken or replaced."""
        while self._rank is not None:
            silent_s = time.monotonic() - self._renewed_at_s
            if silent_s > lease_s:
                self._report_lost(f"no word from the supervisor for {silent_s:.0f} s")
                await self.stop(0.0)
                os._exit(0)
            await asyncio.sleep(min(1.0, lease_s / 4))

    async def _renew_keeper(self) -> None:
        while (rank := self._rank) is not None and not rank.ended:
            rank.renew(KEEPER_LEASE_S)
            await asyncio.sleep(KEEPER_LEASE_S / 10)

    async def _follow_memory(self, plan: GangPlan) -> None:
        """Measure the rank's memory now and then: measuring is expensive, and memory changes slowly."""
        gpus, pause_s = plan.ranks[self._node_rank].gpu_ids, MEMORY_FIRST_S
        measure = partial(rank_memory_bytes, gpu_ids=gpus, shares_gpu=plan.shape.resources.num_gpus < 1)
        while self._rank is not None:
            await asyncio.sleep(pause_s)
            if self._rank is not None and self._rank.keeper_pid:
                whole = await asyncio.to_thread(measure, self._rank.keeper_pid)
                memory_bytes = whole // plan.shape.ranks_per_node
                self._health = dataclasses.replace(self._health, memory_bytes=memory_bytes)
            pause_s = MEMORY_EVERY_S

    def _report_lost(self, reason: str, *, on_request: bool = False) -> None:
        if self._lost is not None and not self._lost.done():
            lines = read_tail(self._log, CAUSE_LINES) if self._log else ()
            tail = adapter_for(self._model.engine.kind).cause_in(lines) or lines[-TAIL_LINES:]
            loss = RankLoss(node_rank=self._node_rank, reason=reason, log_tail=tail, on_request=on_request)
            self._lost.set_result(loss)


def _rank_state(plan: GangPlan, node_rank: int, rank: RankProcess, log: Path) -> RankState:
    planned = plan.ranks[node_rank]
    return RankState(
        node_rank=node_rank,
        node_id=planned.node_id,
        address=planned.address,
        hostname=socket.gethostname(),
        pid=rank.pid,
        agent_pid=os.getpid(),
        log_path=str(log),
        started_by=rank.started_by,
        gpu_ids=planned.gpu_ids,
    )


def read_tail(path: Path, num_lines: int, max_bytes: int = 65536) -> tuple[str, ...]:
    """Return the last lines of a file, oldest first; nothing when it does not exist."""
    try:
        return tuple(read_end(path, num_lines, max_bytes)[1].splitlines())
    except FileNotFoundError:
        return ()


def read_end(path: Path, num_lines: int, max_bytes: int = 65536) -> tuple[int, str]:
    """Return the offset up to which a file was read, and its last lines as they are there. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - max_bytes))
        data = file.read(max_bytes)
        lines = data.decode(errors="replace").splitlines(keepends=True)
        return file.tell(), "".join(lines[-num_lines:] if num_lines > 0 else ())
