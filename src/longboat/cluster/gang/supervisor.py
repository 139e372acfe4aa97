"""EngineSupervisor: one Serve replica with one gang; it brings the gang up, reports its state, and ends it whole."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence

from longboat.cluster.gang.adapter_keeper import AdapterKeeper, KnownAdapters
from longboat.cluster.gang.drain_tracker import DRAIN_S
from longboat.cluster.gang.engine_metrics import EngineMetrics
from longboat.cluster.gang.gang import Gang
from longboat.cluster.gang.gang_start import GangStart, lost
from longboat.cluster.gang.phases import PhaseClock
from longboat.cluster.gang.resume_prover import ProofMemory, ResumeProver
from longboat.cluster.protocol.announcer import Announcer
from longboat.cluster.protocol.messages import Announcement, RankLoss, Verdict
from longboat.cluster.protocol.model import GangIdentity, ServedModel
from longboat.cluster.protocol.ports import AgentPort, ControllerPort
from longboat.cluster.workers.rare_looks import look_rarely
from longboat.core.errors import EngineError, LongboatError
from longboat.core.plan import GangShape
from longboat.core.states import Phase, ReplicaState
from longboat.engines.registry import adapter_for
from longboat.folders import run_folder
from longboat.telemetry import logger

__all__ = ("EngineSupervisor", "GangRunner")

log = logger("supervisor")

STOP_GRACE_S = 5.0


class GangRunner:  # size: the parts of one gang, and the tasks that end it
    """The supervisor of one gang without Serve or Ray: its agents, controller and exit function are passed in."""

    def __init__(
        self,
        *,
        fleet: str,
        model: ServedModel,
        shape: GangShape,
        replica: str,
        digest: str,
        slot: Callable[[], int],
        agents: Sequence[AgentPort],
        controller: ControllerPort,
        die: Callable[[str], None],
        proofs: ProofMemory | None = None,
    ) -> None:
        """proofs: what earlier replicas of this node proved; None: nothing is remembered"""
        self._model = model
        self._shape = shape
        self._slot = slot
        self._controller = controller
        self._die = die
        self._gang = Gang(agents, adapter_for(model.engine.kind))
        self._identity = GangIdentity(
            fleet=fleet,
            replica=replica,
            digest=digest,
            generation=time.time_ns() // 1_000_000,
            api_key=secrets.token_urlsafe(24),
        )
        self._log_tail: tuple[str, ...] = ()
        self._announcer = Announcer(self._announce)
        self._clock = PhaseClock(self._announcer.change)
        self._proof = ResumeProver(self._announcer.change, proofs)
        self._metrics = EngineMetrics(self._gang, self._gang.adapter)
        self._adapters = AdapterKeeper(self._gang, self._announcer.change) if model.adapters is not None else None
        self._starting: asyncio.Task[asyncio.Task[RankLoss]] | None = None
        self._leaving = False
        self._leave_by_s = 0.0
        self._left: asyncio.Task[None] | None = None
        self._ordered: asyncio.Task[None] | None = None
        self._tasks = [asyncio.create_task(self._announcer.run())]
        self._start = GangStart(self._gang, model, self._clock, self._proof, self._adapters, self._tasks.append)

    @property
    def phase(self) -> Phase:
        return self._clock.phase

    async def bring_up(self) -> None:
        """Place, start, load and warm the gang; return when it has made a token.

        Raises EngineError when a rank is lost, or the replica is stopped, on the way; nothing of the gang is left then.
        """
        self._starting = asyncio.create_task(self._start.run(self._shape, self._identity))
        try:
            loss = await self._starting
            if self._leaving:
                loss.cancel()
                raise EngineError("the replica was stopped while it started")
        except asyncio.CancelledError:
            await self._fail(stopped := EngineError("the replica was stopped while it started"))
            raise stopped from None
        except Exception as error:
            known = _known(error)
            await self._fail(known)
            raise known from error
        self._clock.enter(Phase.READY)
        self._tasks.append(asyncio.create_task(self._end_with(loss)))
        self._tasks.append(asyncio.create_task(self._metrics.measure()))

    def check(self) -> None:
        """Raise when the gang is not whole."""
        if self.phase is Phase.FAILED:
            raise EngineError(self._clock.detail, hint=f"longboat logs {self._model.name}")

    async def drain(self, patience_s: float) -> None:
        """Tell the gateways to send nothing more, wait until the engine is idle, end the gang.

        patience_s: longest wait, unless the controller names another: it knows where responses can be resumed
        """
        if self.phase is Phase.FAILED:
            return
        if self._left is None:
            self._left = asyncio.create_task(self._drain(patience_s))
        await self._left

    async def _drain(self, patience_s: float) -> None:
        self._leaving = True
        served = self.phase is Phase.READY
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        self._leave_by_s = time.monotonic() + patience_s
        self._clock.enter(Phase.DRAINING)
        await self._announce()
        if served:
            await self._metrics.wait_idle(lambda: self._leave_by_s)
        await self._close()
        self._clock.enter(Phase.GONE)
        await self._announce()

    async def _leave_on_order(self) -> None:
        """Drain the gang by an operator's order, then exit: Serve starts another replica."""
        await self.drain(DRAIN_S)
        self._die("it was drained")

    async def _end_with(self, loss: asyncio.Task[RankLoss]) -> None:
        found = await loss
        error = lost(found)
        log.error("%s/%s: %s", self._model.name, self._identity.replica, error)
        await self._fail(error, on_request=found.on_request)
        self._die(str(error))

    async def _fail(self, error: BaseException, *, on_request: bool = False) -> None:
        """End the gang and report the failure, unless the replica was stopped on purpose."""
        if self._leaving:
            await self._gang.stop(0.0, on_request=on_request)
            return
        self._clock.detail = str(error) or type(error).__name__
        self._log_tail = getattr(error, "log_tail", ())
        self._clock.enter(Phase.FAILED)
        stop = self._gang.stop(0.0, on_request=on_request)
        await asyncio.gather(self._announce(), stop, return_exceptions=True)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._gang.stop(STOP_GRACE_S)

    async def _announce(self) -> Verdict | None:
        """Report to the controller. Never raises: the gang serves on while the controller, or the head, is away."""
        try:
            verdict = await self._controller.announce(self._announcement())
        except Exception as error:
            log.debug("the controller did not take the announcement: %r", error)
            return None
        if verdict.adapters is not None and self._adapters is not None:
            self._adapters.take(verdict.adapters)
        if limit_s := getattr(verdict, "start_s", None):  # an older controller's verdict lacks it
            self._start.limit_s = limit_s
        if verdict.patience_s is not None:
            self._leave_by_s = time.monotonic() + verdict.patience_s
        if verdict.leave and self.phase is Phase.READY and self._ordered is None:
            self._ordered = asyncio.create_task(self._leave_on_order())
        if verdict.stop and self.phase is not Phase.DRAINING:
            self._clock.detail = verdict.reason
            await self._gang.stop(0.0)
            self._die(verdict.reason)
        return verdict

    def _announcement(self) -> Announcement:
        known = self._adapters.known if self._adapters is not None else KnownAdapters()
        state = ReplicaState(
            model=self._model.name,
            replica=self._identity.replica,
            generation=self._identity.generation,
            phase=self.phase,
            url=self._gang.url,
            ranks=self._gang.states(),
            phase_s=self._clock.seconds(),
            detail=self._clock.detail,
            shape=self._shape.title,
            digest=self._identity.digest,
            supervisor_pid=os.getpid(),
            resume=self._proof.best.level,
            resume_detail=self._proof.best.detail,
            revision=self._gang.revision,
            actual=self._metrics.actual(),
            adapters=known.revisions,
            adapters_held=known.held,
            adapter_problems=known.problems,
        )
        plan = self._gang.plan
        return Announcement(
            state=state,
            slot=self._slot(),
            capacity=self._gang.adapter.capacity(plan) if plan else None,
            adapters_held=self._model.adapters.held if self._model.adapters is not None else 0,
            context_tokens=self._start.context_tokens,
            beats=self._gang.beats,
            api_key=self._identity.api_key,
            log_tail=self._log_tail,
            every_s=self._announcer.every_s,
        )


class EngineSupervisor:
    """The Serve deployment. Serve counts it as ready when ``__init__`` returns: a real token has come back."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        fleet: str,
        model: ServedModel,
        shape: GangShape,
        digest: str,
        create_agents: Callable[[ServedModel, GangShape], list[AgentPort]],
    ) -> None:
        from ray import _raylet, serve

        from longboat.cluster.protocol.names import CONTROLLER_APP
        from longboat.cluster.protocol.ports import ServeController

        context = serve.get_replica_context()
        self._runner = GangRunner(
            fleet=fleet,
            model=model,
            shape=shape,
            replica=context.replica_tag,
            digest=digest,
            slot=lambda: int(serve.get_replica_context().rank.rank),
            agents=create_agents(model, shape),
            controller=ServeController(CONTROLLER_APP),
            die=_exit_process,
            proofs=ProofMemory(run_folder()),
        )
        await self._runner.bring_up()
        look_rarely(_raylet)

    async def check_health(self) -> None:
        """Raise when the gang is not whole. Serve calls this every two seconds and replaces a replica after three
        failures; a dead rank ends this process before that."""
        self._runner.check()

    async def __del__(self) -> None:
        """End the gang; Serve calls this when it stops the replica."""
        if runner := getattr(self, "_runner", None):
            await runner.drain(DRAIN_S)


def _exit_process(reason: str) -> None:
    """Exit: the quickest way to tell Serve, which replaces a dead actor without waiting for three failed checks."""
    log.error("supervisor ends: %s", reason)
    os._exit(1)


def _known(error: Exception) -> Exception:
    """Unwrap an error of another node: Ray wraps it, with a traceback for a message."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, LongboatError) else error
