"""The fake engine without its HTTP edge: admission, pace, faults, and the tokens of each answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from longboat.core.states import ResumeLevel
from longboat_fake.engine.blocks import BlockPool, KvEvent, Reservation
from longboat_fake.engine.faults import OF_ONE_ANSWER, Fault, StreamBroken
from longboat_fake.engine.metrics import EngineMetrics
from longboat_fake.engine.tokens import natural_length, piece, prompt_digest, token_at, token_of

__all__ = ("EngineSettings", "FakeEngine", "Job")

_STEP_S = 0.1
_CATCH_UP_S = 0.1  # a token this late does not make the next ones come faster


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How big and how fast the engine is.

    num_blocks, block_tokens: KV memory; max_running: answers in progress at once, others wait;
    context_tokens: limit of prompt and answer together
    resume: how it goes on with another replica's answer; poison: a word in a prompt that kills the engine
    """

    model: str
    ttft_s: float = 0.0
    itl_s: float = 0.0
    max_running: int = 256
    num_blocks: int = 4096
    block_tokens: int = 32
    context_tokens: int = 32_768
    resume: ResumeLevel = ResumeLevel.CARRIED
    poison: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One answer to produce.

    num_tokens: its whole length; None: the answer's natural length, ended by itself
    seed: another one gives another answer; None: the answer depends on the prompt alone
    prior: tokens of this answer that another replica has produced already; they come out again first, at once or,
    where it is ``replayed``, one step after the other
    script: the answer's text, a piece for each token, where it is decided beforehand; empty: it is made up
    num_reasoning: tokens of reasoning before the answer's text
    """

    prompt: tuple[int, ...]
    num_tokens: int | None
    choice: int = 0
    seed: int | None = None
    prior: tuple[int, ...] = ()
    is_replayed: bool = False
    script: tuple[str, ...] = ()
    num_reasoning: int = 0
    fault: Fault | None = None
    digest: int = field(init=False)

    def __post_init__(self) -> None:
        seed = () if self.seed is None else (-1 - self.seed,)  # no prompt has negative ids
        object.__setattr__(self, "digest", prompt_digest((*self.prompt, *seed)))

    @property
    def length_tokens(self) -> int:
        if self.num_tokens is None:
            return self.full_tokens
        return min(self.full_tokens, self.num_tokens) if self.script else self.num_tokens

    @property
    def full_tokens(self) -> int:
        """What it would be without a limit."""
        return self.num_reasoning + (len(self.script) or natural_length(self.digest))

    @property
    def is_cut(self) -> bool:
        """Whether the limit ends the answer, not the answer itself."""
        if self.num_tokens is None:
            return False
        return not self.script or self.num_tokens < self.full_tokens

    @property
    def total_tokens(self) -> int:
        return len(self.prompt) + self.length_tokens

    def token_at(self, position: int) -> int:
        """Id of the token at this place of the answer, counted from 0."""
        if self.is_replayed and position < len(self.prior):
            return self.prior[position]
        if self.script and position >= self.num_reasoning:
            return token_of(self.script[position - self.num_reasoning])
        return token_at(self.digest, position, self.choice)

    def piece_at(self, token_id: int, position: int) -> str:
        """Text of the token at this place."""
        place = position - self.num_reasoning
        if place < 0:
            return piece(token_id, position)
        return self.script[place] if self.script else piece(token_id, place)


class FakeEngine:
    """Runs jobs: first come, first served, as far as sequences and KV blocks allow."""

    def __init__(self, settings: EngineSettings, on_kv_event: Callable[[KvEvent], None] | None = None) -> None:
        self.settings = settings
        self.metrics = EngineMetrics(model=settings.model)
        self.gates = {"fault": asyncio.Event(), "gang": asyncio.Event()}
        for gate in self.gates.values():
            gate.set()
        self._pool = BlockPool(settings.num_blocks, settings.block_tokens, on_kv_event)
        self._waiting: deque[tuple[Job, asyncio.Future[Reservation]]] = deque()
        self._num_running = 0
        self._armed: list[Fault] = []
        self._slow_factor = 1.0
        self.num_steps = 0

    @property
    def num_running(self) -> int:
        return self._num_running

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def metrics_text(self) -> str:
        return self.metrics.text(
            running=self._num_running,
            waiting=len(self._waiting),
            kv_used_ratio=self._pool.used_ratio,
            num_blocks=self._pool.num_blocks,
            block_tokens=self._pool.block_tokens,
        )

    def too_long(self, job: Job) -> str:
        """Why this job can never run; empty: it can."""
        room = min(self.settings.context_tokens, self._pool.num_blocks * self._pool.block_tokens)
        if job.total_tokens <= room:
            return ""
        asked = f"{len(job.prompt)} prompt tokens and {job.length_tokens} tokens of answer"
        return f"This model's maximum context length is {room} tokens, and the request asks for {asked}"

    def arm(self, fault: Fault) -> None:
        """Play ``fault`` at the next answer that reaches its token count; at once where that is 0 and it is global."""
        if fault.kind == "none":
            self._armed.clear()
            self._slow_factor = 1.0
            self.gates["fault"].set()
        elif fault.after_tokens == 0 and fault.kind not in OF_ONE_ANSWER:
            self._play(fault)
        else:
            self._armed.extend([fault] * fault.times)

    def takes_error(self) -> bool:
        """Whether the request that just came is to be answered with an error."""
        due = next((fault for fault in self._armed if fault.kind == "error"), None)
        if due is not None:
            self._armed.remove(due)
        return due is not None

    async def generate(self, job: Job, is_stopped: Callable[[], bool]) -> AsyncGenerator[tuple[int, ...], None]:
        """Token ids of the answer as they are made; the first batch repeats ``prior``.

        ``is_stopped`` is asked after each batch: True ends the answer (a stop string came).
        Raises StreamBroken where a fault says that the answer's connection is to be closed.
        """
        arrived_s = asyncio.get_running_loop().time()
        produced = [] if job.is_replayed else list(job.prior)
        reservation = await self._admit(job)
        reason = "abort"
        try:
            async for batch in self._tokens(job, produced, arrived_s):
                yield batch
                if is_stopped():
                    break
            reason = "length" if job.is_cut and not is_stopped() else "stop"
        finally:
            self.metrics.finished[reason] += 1
            self._finish(reservation, (*job.prompt, *produced))

    async def read(self, job: Job) -> None:
        """Take in a prompt and make no token: what embeddings and their like cost."""
        reservation = await self._admit(job)
        reason = "abort"
        try:
            await self._play_due(job, 0)
            await asyncio.sleep(self.settings.ttft_s * self._slow_factor)
            for gate in self.gates.values():
                await gate.wait()
            reason = "stop"
        finally:
            self.metrics.finished[reason] += 1
            self._finish(reservation, job.prompt)

    async def _tokens(self, job: Job, produced: list[int], arrived_s: float) -> AsyncGenerator[tuple[int, ...], None]:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self.settings.ttft_s * self._slow_factor
        last_s, num_taken = arrived_s, len(produced)
        if self.settings.poison and token_of(self.settings.poison) in job.prompt:
            await asyncio.sleep(_STEP_S)
            self._play(Fault(kind="die"))
        await self._play_due(job, num_taken)
        while len(produced) < job.length_tokens:
            await self._compute_until(due_s)
            now_s = loop.time()
            first = len(produced) == num_taken
            (self.metrics.ttft if first else self.metrics.itl).observe(now_s - last_s)
            last_s = now_s
            due_s = (due_s if now_s - due_s < _CATCH_UP_S else now_s) + self.settings.itl_s * self._slow_factor
            produced.append(job.token_at(len(produced)))
            self.metrics.generation_tokens += 1
            yield tuple(produced) if first else (produced[-1],)
            await self._play_due(job, len(produced))

    async def _compute_until(self, due_s: float) -> None:
        """Engine steps up to that moment, and until every gate is open; a long prefill has many of them."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_STEP_S, max(0.0, due_s - loop.time())))
            for gate in self.gates.values():
                await gate.wait()
            self.num_steps += 1
            if loop.time() >= due_s:
                return

    async def _admit(self, job: Job) -> Reservation:
        place: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        entry = (job, place)
        self._waiting.append(entry)
        self._admit_waiting()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._finish(place.result(), job.prompt)
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._admit_waiting()
            self.metrics.finished["abort"] += 1
            raise

    def _admit_waiting(self) -> None:
        while self._waiting and self._num_running < self.settings.max_running:
            job, place = self._waiting[0]
            if place.done():  # its client has gone
                self._waiting.popleft()
                continue
            reservation = self._pool.reserve(job.prompt, job.total_tokens)
            if reservation is None:
                return
            self._waiting.popleft()
            self._num_running += 1
            self.metrics.prompt_tokens += len(job.prompt)
            self.metrics.prefix_queries_tokens += len(job.prompt)
            self.metrics.prefix_hits_tokens += reservation.cached_tokens
            place.set_result(reservation)

    def _finish(self, reservation: Reservation, token_ids: tuple[int, ...]) -> None:
        self._num_running -= 1
        self._pool.release(reservation, token_ids)
        self._admit_waiting()

    async def _play_due(self, job: Job, num_produced: int) -> None:
        due = [job.fault] if job.fault is not None and job.fault.after_tokens == num_produced else []
        armed = [fault for fault in self._armed if fault.after_tokens <= num_produced and fault.kind != "error"]
        for fault in armed[:1]:  # another answer gets the next one
            self._armed.remove(fault)
            due.append(fault)
        for fault in due:
            await asyncio.sleep(0.02 if num_produced else 0)  # what was produced reaches the wire first
            if fault.kind == "stall":
                await asyncio.Event().wait()
            self._play(fault)

    def _play(self, fault: Fault) -> None:
        match fault.kind:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                self.gates["fault"].clear()
            case "slow":
                self._slow_factor = fault.factor
            case "none":
                self.arm(fault)
            case "break" | "truncate" | "garbage" | "nonsense" | "report":
                raise StreamBroken(fault.kind)
