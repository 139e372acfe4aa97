"""EngineSupervisor: one Serve replica with one gang; it brings the gang up, reports its state, and ends it whole."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from longboat.cluster.gang.adapter_keeper import AdapterKeeper, KnownAdapters
from longboat.cluster.gang.card_turn import card_turn
from longboat.cluster.gang.drain_tracker import DRAIN_S
from longboat.cluster.gang.engine_metrics import EngineMetrics
from longboat.cluster.gang.gang import Gang
from longboat.cluster.gang.phases import PhaseClock, outlasted
from longboat.cluster.gang.probe import context_tokens, wait_for_token
from longboat.cluster.gang.resume_prover import ProofMemory, ResumeProver
from longboat.cluster.protocol.announcer import Announcer
from longboat.cluster.protocol.messages import Announcement, RankLoss, Verdict
from longboat.cluster.protocol.model import GangIdentity, ServedModel
from longboat.cluster.protocol.ports import AgentPort, ControllerPort
from longboat.cluster.workers.rare_looks import look_rarely
from longboat.core.errors import EngineError, LongboatError
from longboat.core.plan import GangPlan, GangShape
from longboat.core.states import START_PHASES, Phase, ReplicaState
from longboat.core.tasks import GENERATE
from longboat.engines.contract import Probe
from longboat.engines.registry import adapter_for
from longboat.folders import home_folder, run_folder
from longboat.spec.types.source import is_fetched
from longboat.telemetry import logger

__all__ = ("EngineSupervisor", "GangRunner")

log = logger("supervisor")

STOP_GRACE_S = 5.0


class GangRunner:  # size: the life of a gang from its start to its end; its states and orders depend on each other
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
        self._adapter = adapter_for(model.engine.kind)
        self._gang = Gang(agents, self._adapter)
        self._identity = GangIdentity(
            fleet=fleet,
            replica=replica,
            digest=digest,
            generation=time.time_ns() // 1_000_000,
            api_key=secrets.token_urlsafe(24),
        )
        self._clock = PhaseClock()
        self._detail = ""
        self._log_tail: tuple[str, ...] = ()
        self._announcer = Announcer(self._announce)
        self._proof = ResumeProver(self._announcer.change, proofs)
        self._metrics = EngineMetrics(self._gang, self._adapter)
        self._adapters = AdapterKeeper(self._gang, self._announcer.change) if model.adapters is not None else None
        self._starting: asyncio.Task[asyncio.Task[RankLoss]] | None = None
        self._context_tokens = 0  # as in ``Endpoint``
        self._start_s: float | None = None  # longest start of the engine; None: not known yet
        self._leaving = False
        self._leave_by_s = 0.0
        self._left: asyncio.Task[None] | None = None
        self._ordered: asyncio.Task[None] | None = None
        self._tasks = [asyncio.create_task(self._announcer.run())]

    @property
    def phase(self) -> Phase:
        return self._clock.phase

    async def bring_up(self) -> None:
        """Place, start, load and warm the gang; return when it has made a token.

        Raises EngineError when a rank is lost, or the replica is stopped, on the way; nothing of the gang is left then.
        """
        self._starting = asyncio.create_task(self._bring_up())
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
        self._enter(Phase.READY)
        self._tasks.append(asyncio.create_task(self._end_with(loss)))
        self._tasks.append(asyncio.create_task(self._metrics.measure()))

    async def _bring_up(self) -> asyncio.Task[RankLoss]:
        """Start the gang, in its turn where it shares a card; return the task that waits for the loss of a rank."""
        if is_fetched(self._model.source):
            await self._fetch()
        plan = await self._gang.prepare(self._model, self._shape, self._identity)
        shared = plan.head.gpu_ids if plan.shape.resources.num_gpus < 1 else ()
        if shared:
            self._note("waits for other starts on its GPU")
        async with card_turn(run_folder(), shared):
            self._note("")
            try:
                return await self._start(plan)
            except BaseException:
                if shared:  # the next one measures what is free
                    await self._gang.stop(0.0)
                raise

    async def _fetch(self) -> None:
        """Fetch the model to the gang's nodes, and say how far this one is."""
        from longboat.cluster.weights.here import followed

        self._enter(Phase.FETCHING)
        await followed(self._gang.fetch(), self._model.source, home_folder(), self._note)
        self._note("")

    async def _start(self, plan: GangPlan) -> asyncio.Task[RankLoss]:
        """Start every rank; return the task that waits for the loss of one, once a token has come."""
        self._enter(Phase.STARTING)
        phases = asyncio.create_task(self._gang.follow_phases(self._take_phase))
        watches: list[asyncio.Task[Any]] = [phases]
        try:
            await self._gang.start()
            loss = asyncio.create_task(self._gang.first_loss())
            probe = self._adapter.probe(plan)
            ready = asyncio.create_task(self._wait_ready(probe, plan.api_key))
            limit = asyncio.create_task(outlasted(lambda: self._start_s))
            watches += [ready, loss, limit]
            await asyncio.wait({loss, ready, limit}, return_when=asyncio.FIRST_COMPLETED)
            if loss.done():
                raise _lost(loss.result())
            if not ready.done():
                raise _too_slow(limit.result(), self.phase, self._model.name)
            ready.result()
            watches.remove(loss)
            self._detail = ""
            return loss
        finally:
            for watch in watches:
                watch.cancel()

    async def _wait_ready(self, probe: Probe, api_key: str) -> None:
        """Wait until a token or an embedding came, and a moment longer for the engine to prove how it resumes."""
        url = self._gang.url
        await wait_for_token(url, probe, api_key, on_refusal=self._note)
        self._context_tokens = await context_tokens(url, api_key, self._model.name)
        if self._adapters is not None:
            self._tasks.append(asyncio.create_task(self._adapters.run()))
            await self._adapters.wait_first()
        if self._model.task != GENERATE:
            self._proof.leave_out(f"{self._model.task}: nothing is streamed, another replica repeats a lost request")
            return
        self._proof.remember(self._gang.revision)
        proof = self._proof.run(url, api_key, self._model.name, self._gang.revision)
        self._tasks.append(asyncio.create_task(proof))
        await self._proof.wait_first()

    def _note(self, detail: str) -> None:
        self._detail = detail

    def check(self) -> None:
        """Raise when the gang is not whole."""
        if self.phase is Phase.FAILED:
            raise EngineError(self._detail, hint=f"longboat logs {self._model.name}")

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
        self._enter(Phase.DRAINING)
        await self._announce()
        if served:
            await self._metrics.wait_idle(lambda: self._leave_by_s)
        await self._close()
        self._enter(Phase.GONE)
        await self._announce()

    async def _leave_on_order(self) -> None:
        """Drain the gang by an operator's order, then exit: Serve starts another replica."""
        await self.drain(DRAIN_S)
        self._die("it was drained")

    async def _end_with(self, loss: asyncio.Task[RankLoss]) -> None:
        found = await loss
        lost = _lost(found)
        log.error("%s/%s: %s", self._model.name, self._identity.replica, lost)
        await self._fail(lost, on_request=found.on_request)
        self._die(str(lost))

    async def _fail(self, error: BaseException, *, on_request: bool = False) -> None:
        """End the gang and report the failure, unless the replica was stopped on purpose."""
        if self._leaving:
            await self._gang.stop(0.0, on_request=on_request)
            return
        self._detail = str(error) or type(error).__name__
        self._log_tail = getattr(error, "log_tail", ())
        self._enter(Phase.FAILED)
        stop = self._gang.stop(0.0, on_request=on_request)
        await asyncio.gather(self._announce(), stop, return_exceptions=True)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._gang.stop(STOP_GRACE_S)

    def _take_phase(self, phase: Phase) -> None:
        if self.phase in START_PHASES and self.phase is not phase:
            self._enter(phase)

    def _enter(self, phase: Phase) -> None:
        self._clock.enter(phase)
        self._announcer.change()

    async def _announce(self) -> Verdict | None:
        """Report to the controller. Never raises: the gang serves on while the controller, or the head, is away."""
        try:
            verdict = await self._controller.announce(self._announcement())
        except Exception as error:
            log.debug("the controller did not take the announcement: %r", error)
            return None
        if verdict.adapters is not None and self._adapters is not None:
            self._adapters.take(verdict.adapters)
        self._start_s = getattr(verdict, "start_s", None) or self._start_s  # an older controller's verdict lacks it
        if verdict.patience_s is not None:
            self._leave_by_s = time.monotonic() + verdict.patience_s
        if verdict.leave and self.phase is Phase.READY and self._ordered is None:
            self._ordered = asyncio.create_task(self._leave_on_order())
        if verdict.stop and self.phase is not Phase.DRAINING:
            self._detail = verdict.reason
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
            detail=self._detail,
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
            capacity=self._adapter.capacity(plan) if plan else None,
            adapters_held=self._model.adapters.held if self._model.adapters is not None else 0,
            context_tokens=self._context_tokens,
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


def _too_slow(limit_s: float, phase: Phase, model: str) -> LongboatError:
    what = f"the engine was not ready {limit_s:.0f} s after its start; its phase is {phase.value}"
    return EngineError(
        what, hint=f"longboat logs {model} shows where it hangs; raise update.ready_s if it is only slow"
    )


def _lost(loss: RankLoss) -> LongboatError:
    return EngineError(f"rank {loss.node_rank} is lost: {loss.reason}", log_tail=loss.log_tail)
