"""NodeAgent: owns one node rank of a gang: finds ports and files, starts the rank, watches it, ends it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat.cluster.gang.heartbeat_publisher import DOOR
from longboat.cluster.gang.log_phase import follow_phases
from longboat.cluster.gang.revision import revision_of
from longboat.cluster.host.nic import interface_of, route_source
from longboat.cluster.host.proc_usage import group_usage
from longboat.cluster.host.rank_life import RankLife
from longboat.cluster.host.rank_memory import rank_memory_bytes
from longboat.cluster.protocol.messages import AgentFacts, RankHealth, RankLoss
from longboat.cluster.protocol.model import ServedModel
from longboat.core.errors import EngineError
from longboat.core.plan import GangPlan
from longboat.core.states import Phase, RankState
from longboat.engines.registry import adapter_for
from longboat.folders import home_folder, log_path, run_folder
from longboat.heartbeat.server import BeatDoor, door_socket
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Life, RankBeat

if TYPE_CHECKING:
    from longboat.engines.contract import EngineEnvironment
    from longboat.engines.launch.process import RankProcess
    from longboat.engines.launch.zygote_client import ZygoteClient

__all__ = ("LEASE_S", "NodeAgent", "read_tail")

LEASE_S = 10.0
"""A rank whose supervisor is silent for this long stops itself."""

KEEPER_LEASE_S = 15.0
"""A rank whose agent is silent for this long is ended by its keeper: an agent may be stopped, and does not see it."""

KEEPER_S = 5.0
"""How long a keeper may take to end its rank by force."""

MEMORY_FIRST_S, MEMORY_EVERY_S = 3.0, 15.0

ZYGOTE_WAIT_S = 120.0
"""How long a start waits for a zygote that is still importing: a plain start would import the same, and more often."""


class NodeAgent:
    """Owns one node rank. All methods are called by the gang's supervisor; none blocks the loop.

    lease_s: None for an agent that lives in its supervisor's process, and dies with it
    """

    def __init__(self, model: ServedModel, node_rank: int, lease_s: float | None = LEASE_S) -> None:
        self._model = model
        self._node_rank = node_rank
        self._lease_s = lease_s
        self._renewed_at_s = time.monotonic()
        self._rank: RankProcess | None = None
        self._log: Path | None = None
        self._phase = ""
        self._memory_bytes = 0
        self._lost: asyncio.Future[RankLoss] | None = None
        self._reserved: list[socket.socket] = []
        self._beats: socket.socket | None = None
        self._life: RankLife | None = None
        self._door: BeatDoor | None = None
        self._marks: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self, *, purposes: tuple[str, ...], peer: str | None) -> AgentFacts:
        """Say where this rank runs and find what it needs: free ports, the model's folder, the engine.

        peer: address of the gang's head; our address is the one the route to it leaves by.
        Raises UserInputError or ClusterError when the model or the engine is not on this node.
        """
        import ray

        from longboat.cluster.host.facts import engine_title, node_address, visible_gpus

        context = ray.get_runtime_context()
        address = route_source(peer) if peer else node_address()
        model_path = await asyncio.to_thread(self._find_model)
        engine = await asyncio.to_thread(engine_title, self._model.engine)
        return AgentFacts(
            node_id=context.get_node_id(),
            hostname=socket.gethostname(),
            address=address,
            interface=interface_of(address),
            pid=os.getpid(),
            gpu_ids=visible_gpus(),
            ports={**{purpose: self._reserve_port(address) for purpose in purposes}, DOOR: self._beats_port(address)},
            model_path=model_path,
            engine=engine,
            revision="" if peer else await asyncio.to_thread(revision_of, self._model, model_path, engine),
        )

    async def start(self, plan: GangPlan) -> RankState:
        """Start this agent's rank of ``plan`` and keep its lease from now on.

        Raises EngineError when no process came up.
        """
        run = run_folder()
        self._log = log_path(run, plan.model, plan.replica, self._node_rank)
        self._lost = asyncio.get_running_loop().create_future()
        started_by = await self._start_rank(plan, run)
        self._renewed_at_s = time.monotonic()  # the lease runs from here: waiting for a zygote is no silence
        await self._tell_beats(plan.api_key)
        self._spawn(self._watch_exit())
        self._spawn(self._renew_keeper())
        if self._lease_s is not None:
            self._spawn(self._watch_lease(self._lease_s))
        self._spawn(self._follow_phase())
        self._spawn(self._follow_memory(plan))
        return self._state(plan, started_by)

    async def renew(self) -> RankHealth:
        """Note that the supervisor is alive, and say how the rank is."""
        self._renewed_at_s = time.monotonic()
        pid = self._rank.keeper_pid if self._rank else None
        usage = group_usage(pid) if pid else None
        return RankHealth(
            node_rank=self._node_rank,
            alive=self._rank is not None and not (self._lost and self._lost.done()),
            phase=self._phase,
            rss_bytes=usage.rss_bytes if usage else 0,
            cpu_s=usage.cpu_s if usage else 0.0,
            memory_bytes=self._memory_bytes,
        )

    async def wait_lost(self) -> RankLoss:
        """Return when the rank is gone, whoever ended it."""
        if self._lost is None:
            raise EngineError("the rank was never started", hint="call start() first")
        return await asyncio.shield(self._lost)

    async def stop(self, grace_s: float) -> None:
        """End the rank: politely, and by force after ``grace_s`` seconds. Returns when no process of it is left."""
        rank, self._rank = self._rank, None
        if rank is None:
            return
        if grace_s > 0:
            rank.terminate(grace_s)
        else:
            rank.kill()
        try:
            await asyncio.wait_for(rank.wait(), grace_s + KEEPER_S)
        except TimeoutError:  # a keeper that was stopped itself ends nobody
            await self._reap_leftovers()

    def kill(self) -> None:
        """End the rank at once, without waiting for it."""
        if self._rank is not None:
            self._rank.kill()

    async def _start_rank(self, plan: GangPlan, run: Path) -> str:
        from longboat.cluster.host.launch import rank_command, rank_marks
        from longboat.engines.launch.process import start_rank

        assert self._log is not None
        command, environment = await asyncio.to_thread(rank_command, self._model, plan, self._node_rank)
        marks = self._marks = rank_marks(plan, self._node_rank, run)
        try:
            zygote = await self._zygote(environment, command.zygote.preload_env, run) if command.zygote else None
            self._release_ports()
            self._rank = await start_rank(command, env_tags=marks, log_path=self._log, zygote=zygote)
        except (OSError, EngineError) as error:
            if command.zygote is None:
                raise
            self._release_ports()
            with self._log.open("a") as log:
                log.write(f"longboat: the zygote did not fork ({error}); starting plainly\n")
            self._rank = await start_rank(command, env_tags=marks, log_path=self._log, zygote=None)
        return self._rank.started_by

    async def _zygote(
        self, environment: EngineEnvironment | None, preload_env: Mapping[str, str], run: Path
    ) -> ZygoteClient | None:
        from longboat.cluster.host.launch import warm_zygote

        startup = self._model.engine.startup
        if environment is None or startup == "plain" or (startup == "auto" and environment.platform != "cpu"):
            return None
        return await warm_zygote(environment, preload_env, run, wait_s=ZYGOTE_WAIT_S)

    def _find_model(self) -> str:
        from longboat.cluster.host.facts import model_folder

        return model_folder(self._model.source, home_folder())

    def _reserve_port(self, address: str) -> int:
        """Hold a free port until just before the engine starts, so that no sibling gets it too."""
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
        self._reserved.append(holder)
        port: int = holder.getsockname()[1]
        return port

    def _beats_port(self, address: str) -> int:
        """Listen for heartbeat readers: they know the port before there is anything to send."""
        self._beats = door_socket(address)
        port: int = self._beats.getsockname()[1]
        return port

    async def _tell_beats(self, api_key: str) -> None:
        if self._beats is not None and self._rank is not None:
            self._life = RankLife(self._rank.pid)
            self._door = BeatDoor(self._beats, door_word(api_key), self._beat)
            await self._door.open()

    def _beat(self) -> Beat:
        ended = self._rank is None or self._life is None or self._rank.ended
        life, cpu_s = (Life.ENDED, 0.0) if ended or self._life is None else self._life.read()
        return Beat(ranks=(RankBeat(node_rank=self._node_rank, life=life, cpu_s=cpu_s),))

    def _release_ports(self) -> None:
        for holder in self._reserved:
            holder.close()
        self._reserved.clear()

    def _state(self, plan: GangPlan, started_by: str) -> RankState:
        rank = plan.ranks[self._node_rank]
        return RankState(
            node_rank=self._node_rank,
            node_id=rank.node_id,
            address=rank.address,
            hostname=socket.gethostname(),
            pid=self._rank.pid if self._rank else None,
            agent_pid=os.getpid(),
            log_path=str(self._log or ""),
            started_by=started_by,
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_exit(self) -> None:
        """Whatever goes wrong here, the supervisor is told that the rank is gone."""
        rank = self._rank
        assert rank is not None
        reason = "its end could not be seen"
        try:
            ended = await rank.wait()
            reason = f"exited with {ended}"
            if ended.returncode is None and ended.signal is None:
                await self._reap_leftovers()
        except Exception as error:
            reason = f"{reason}: {error}"
        finally:
            self._report_lost(reason)

    async def _reap_leftovers(self) -> None:
        """End what is left of the rank: without its keeper it may not have ended whole."""
        from longboat.engines.launch.process import reap

        await reap({name: self._marks[name] for name in ("LONGBOAT_RUN", "LONGBOAT_GANG", "LONGBOAT_NODE_RANK")})

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

    async def _follow_phase(self) -> None:
        assert self._log is not None
        phase_of = adapter_for(self._model.engine.kind).phase_of
        await follow_phases(self._log, phase_of, self._take_phase, lambda: self._rank is None)

    def _take_phase(self, phase: Phase) -> None:
        self._phase = phase.value

    async def _follow_memory(self, plan: GangPlan) -> None:
        """Dear to ask, and slow to change."""
        gpus, pause_s = plan.ranks[self._node_rank].gpu_ids, MEMORY_FIRST_S
        while self._rank is not None:
            await asyncio.sleep(pause_s)
            if self._rank is not None and self._rank.keeper_pid:
                whole = await asyncio.to_thread(rank_memory_bytes, self._rank.keeper_pid, gpus)
                self._memory_bytes = whole // plan.shape.ranks_per_node
            pause_s = MEMORY_EVERY_S

    def _report_lost(self, reason: str) -> None:
        if self._lost is not None and not self._lost.done():
            tail = read_tail(self._log, 30) if self._log else ()
            self._lost.set_result(RankLoss(node_rank=self._node_rank, reason=reason, log_tail=tail))


def read_tail(path: Path, num_lines: int, max_bytes: int = 65536) -> tuple[str, ...]:
    """Return the last lines of a file, oldest first; nothing when it does not exist."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            return tuple(file.read().decode(errors="replace").splitlines()[-num_lines:])
    except FileNotFoundError:
        return ()
