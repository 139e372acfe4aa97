"""The start of a gang: its weights, its turn on cards that it shares, its ranks, and its first token."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from longboat.cluster.gang.adapter_keeper import AdapterKeeper
from longboat.cluster.gang.gang import Gang
from longboat.cluster.gang.phases import PhaseClock, outlasted
from longboat.cluster.gang.probe import context_tokens, wait_for_token
from longboat.cluster.gang.resume_prover import ResumeProver
from longboat.cluster.protocol.messages import RankLoss
from longboat.cluster.protocol.model import GangIdentity, ServedModel
from longboat.core.errors import EngineError, LongboatError
from longboat.core.plan import GangPlan, GangShape
from longboat.core.states import Phase
from longboat.core.tasks import GENERATE
from longboat.engines.contract import Probe
from longboat.file_lock import FileLock
from longboat.folders import home_folder, run_folder
from longboat.spec.types.source import is_fetched

__all__ = ("GangStart", "card_turn", "lost")

ASK_EVERY_S = 0.2


class GangStart:
    """The start of one gang, whose phases and details go to its clock."""

    def __init__(
        self,
        gang: Gang,
        model: ServedModel,
        clock: PhaseClock,
        proof: ResumeProver,
        adapters: AdapterKeeper | None,
        keep: Callable[[asyncio.Task[None]], None],
    ) -> None:
        """keep: takes tasks that last until the gang ends"""
        self._gang = gang
        self._model = model
        self._clock = clock
        self._proof = proof
        self._adapters = adapters
        self._keep = keep
        self.context_tokens = 0  # as in ``Endpoint``
        self.limit_s: float | None = None  # longest start of the engine; None: not known yet

    async def run(self, shape: GangShape, identity: GangIdentity) -> asyncio.Task[RankLoss]:
        """Start the gang; return the task that waits for the loss of a rank, once a token has come."""
        if is_fetched(self._model.source):
            await self._fetch()
        plan = await self._gang.prepare(self._model, shape, identity)
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

        self._clock.enter(Phase.FETCHING)
        await followed(self._gang.fetch(), self._model.source, home_folder(), self._note)
        self._note("")

    async def _start(self, plan: GangPlan) -> asyncio.Task[RankLoss]:
        """Start every rank, and wait until the engine is ready."""
        self._clock.enter(Phase.STARTING)
        phases = asyncio.create_task(self._gang.follow_phases(self._clock.enter_found))
        watches: list[asyncio.Task[Any]] = [phases]
        try:
            await self._gang.start()
            loss = asyncio.create_task(self._gang.first_loss())
            ready = asyncio.create_task(self._wait_ready(self._gang.adapter.probe(plan), plan.api_key))
            limit = asyncio.create_task(outlasted(lambda: self.limit_s))
            watches += [ready, loss, limit]
            await asyncio.wait({loss, ready, limit}, return_when=asyncio.FIRST_COMPLETED)
            if loss.done():
                raise lost(loss.result())
            if not ready.done():
                raise _too_slow(limit.result(), self._clock, self._model.name)
            ready.result()
            watches.remove(loss)
            self._note("")
            return loss
        finally:
            for watch in watches:
                watch.cancel()

    async def _wait_ready(self, probe: Probe, api_key: str) -> None:
        """Wait until a token or an embedding came, and a moment longer for the engine to prove how it resumes."""
        url = self._gang.url
        await wait_for_token(url, probe, api_key, on_refusal=self._note)
        self.context_tokens = await context_tokens(url, api_key, self._model.name)
        if self._adapters is not None:
            self._keep(asyncio.create_task(self._adapters.run()))
            await self._adapters.wait_first()
        if self._model.task != GENERATE:
            self._proof.leave_out(f"{self._model.task}: nothing is streamed, another replica repeats a lost request")
            return
        self._proof.remember(self._gang.revision)
        proof = self._proof.run(url, api_key, self._model.name, self._gang.revision)
        self._keep(asyncio.create_task(proof))
        await self._proof.wait_first()

    def _note(self, detail: str) -> None:
        self._clock.detail = detail


@asynccontextmanager
async def card_turn(run: Path, cards: Sequence[str]) -> AsyncIterator[None]:
    """Hold these cards for a start; it waits while another start on this node holds one of them.

    An engine finds out at its start how much memory it may take, from what is in use on its card before and after a
    trial step. What another engine takes or frees meanwhile would count as its own.
    run: the node's run folder, which keeps a lock file for each card. The kernel releases it if this process dies.
    """
    with ExitStack() as held:
        for card in sorted(cards):
            path = run / f"card-{re.sub(r'[^A-Za-z0-9-]', '_', card)}.lock"
            while (lock := FileLock.taken(path)) is None:  # noqa: ASYNC110 - another process holds it
                await asyncio.sleep(ASK_EVERY_S)
            held.enter_context(lock)
        yield


def lost(loss: RankLoss) -> LongboatError:
    """Return the error of a gang that lost a rank."""
    return EngineError(f"rank {loss.node_rank} is lost: {loss.reason}", log_tail=loss.log_tail)


def _too_slow(limit_s: float, clock: PhaseClock, model: str) -> LongboatError:
    said = f": {clock.detail}" if clock.detail else ""
    what = f"the engine was not ready {limit_s:.0f} s after its start; its phase is {clock.phase.value}{said}"
    return EngineError(
        what, hint=f"longboat logs {model} shows where it hangs; raise update.ready_s if it is only slow"
    )
