"""The fake engine without its HTTP edge: admission, timing, faults, and the tokens of each response."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from longboat.core.states import ResumeLevel
from longboat_fake.engine.adapters import FakeAdapters
from longboat_fake.engine.blocks import BlockPool, KvEvent, Reservation
from longboat_fake.engine.fault_player import FaultPlayer
from longboat_fake.engine.faults import Fault
from longboat_fake.engine.metrics import EngineMetrics
from longboat_fake.engine.prefixes import Prefixes
from longboat_fake.engine.step_loop import StepCosts, StepLoop
from longboat_fake.engine.tokens import natural_length, piece, prompt_digest, token_at, token_of
from longboat_vllm.prefixes.header import NamedPrompt
from longboat_vllm.prefixes.ledger import Noted

__all__ = ("EngineSettings", "FakeEngine", "Job")

_STEP_S = 0.1
_CATCH_UP_S = 0.1  # after a token this late, the next ones do not come faster to catch up


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine's size and speed."""

    model: str
    ttft_s: float = 0.0
    itl_s: float = 0.0
    max_running: int = 256  # responses in progress at the same time; others wait
    num_blocks: int = 4096  # KV memory
    block_tokens: int = 32
    context_tokens: int = 32_768  # limit of prompt and response together
    resume: ResumeLevel = ResumeLevel.CARRIED  # how it continues another replica's stream
    poison: str = ""  # a word in a prompt that kills the engine
    adapters_held: int = 0  # LoRA adapters in memory at the same time; 0: the engine knows none
    steps: StepCosts | None = None  # what its steps take; with them, ``ttft_s`` and ``itl_s`` do not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One response to produce."""

    prompt: tuple[int, ...]
    num_tokens: int | None  # whole length; None: the natural length of the response
    choice: int = 0
    # a different seed gives a different response; None: the response depends on the prompt alone
    seed: int | None = None
    prior: tuple[int, ...] = ()  # tokens of this response that another replica has produced; they come out first
    is_replayed: bool = False  # ``prior`` comes one step after the other, not in one batch
    # text of the response, one piece per token, where it is fixed; empty: the text is generated
    script: tuple[str, ...] = ()
    num_reasoning: int = 0  # tokens of reasoning before the text
    fault: Fault | None = None
    adapter: str = ""  # ``NAME@REVISION``, which changes the response; empty: the model itself responds
    salt: str = ""  # requests of other salts share no cached block
    named: NamedPrompt | None = None  # how the gateway names its prompt's blocks
    digest: int = field(init=False)

    def __post_init__(self) -> None:
        seed = () if self.seed is None else (-1 - self.seed,)  # no prompt has negative ids
        adapter = tuple(-256 - byte for byte in self.adapter.encode())
        object.__setattr__(self, "digest", prompt_digest((*self.prompt, *seed, *adapter)))

    @property
    def length_tokens(self) -> int:
        if self.num_tokens is None:
            return self.full_tokens
        return min(self.full_tokens, self.num_tokens) if self.script else self.num_tokens

    @property
    def full_tokens(self) -> int:
        """Length without a limit."""
        return self.num_reasoning + (len(self.script) or natural_length(self.digest))

    @property
    def is_cut(self) -> bool:
        """Whether the limit ends the response."""
        if self.num_tokens is None:
            return False
        return not self.script or self.num_tokens < self.full_tokens

    @property
    def total_tokens(self) -> int:
        return len(self.prompt) + self.length_tokens

    def token_at(self, position: int) -> int:
        """Return the id of the token at this position of the response, counted from 0."""
        if self.is_replayed and position < len(self.prior):
            return self.prior[position]
        if self.script and position >= self.num_reasoning:
            return token_of(self.script[position - self.num_reasoning])
        return token_at(self.digest, position, self.choice)

    def piece_at(self, token_id: int, position: int) -> str:
        """Return the text of the token at this position."""
        place = position - self.num_reasoning
        if place < 0:
            return piece(token_id, position)
        return self.script[place] if self.script else piece(token_id, place)


class FakeEngine:
    """An engine that runs jobs first come, first served, as far as sequences and KV blocks allow."""

    def __init__(self, settings: EngineSettings, on_kv_event: Callable[[KvEvent], None] | None = None) -> None:
        self.settings = settings
        self.metrics = EngineMetrics(model=settings.model)
        self.gates = {"fault": asyncio.Event(), "gang": asyncio.Event()}
        for gate in self.gates.values():
            gate.set()
        self.prefixes = Prefixes(settings.num_blocks, settings.block_tokens)
        self.prefixes.book.load = self.load
        self._on_kv_event = on_kv_event or (lambda _event: None)
        self._pool = BlockPool(settings.num_blocks, settings.block_tokens, self._tell)
        self._waiting: deque[tuple[Job, asyncio.Future[Reservation], Noted | None]] = deque()
        self._num_running = 0
        self.faults = FaultPlayer(self.gates["fault"], self._pool.evict_idle, self.prefixes.lose)
        self.adapters = FakeAdapters(settings.adapters_held)
        self.num_steps = 0
        self._steps = StepLoop(settings.steps) if settings.steps else None

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
        """Explain why this job can never run; empty: it can."""
        room = min(self.settings.context_tokens, self._pool.num_blocks * self._pool.block_tokens)
        if job.total_tokens <= room:
            return ""
        asked = f"{len(job.prompt)} prompt tokens and {job.length_tokens} completion tokens"
        return f"This model's maximum context length is {room} tokens, but the request asks for {asked}"

    async def generate(self, job: Job, is_stopped: Callable[[], bool]) -> AsyncGenerator[tuple[int, ...], None]:
        """Yield the token ids of the response as they are made; the first batch repeats ``prior``.

        ``is_stopped`` is called after each batch: True ends the response (a stop string came).
        Raises StreamBroken where a fault says that the connection must be closed.
        """
        arrived_s = asyncio.get_running_loop().time()
        produced = [] if job.is_replayed else list(job.prior)
        reservation = await self._admit(job)
        reason = "abort"
        try:
            make = self._tokens if self._steps is None else self._stepped
            async for batch in make(job, produced, arrived_s, reservation.cached_tokens):
                yield batch
                if is_stopped():
                    break
            reason = "length" if job.is_cut and not is_stopped() else "stop"
        finally:
            self.metrics.finished[reason] += 1
            self._finish(reservation, (*job.prompt, *produced))

    async def read(self, job: Job) -> None:
        """Process a prompt and make no token: what embeddings and the like cost."""
        reservation = await self._admit(job)
        reason = "abort"
        try:
            await self.faults.play_due(job.fault, 0)
            await asyncio.sleep(self.settings.ttft_s * self.faults.slow_factor)
            for gate in self.gates.values():
                await gate.wait()
            reason = "stop"
        finally:
            self.metrics.finished[reason] += 1
            self._finish(reservation, job.prompt)

    async def _stepped(
        self, job: Job, produced: list[int], arrived_s: float, cached_tokens: int
    ) -> AsyncGenerator[tuple[int, ...], None]:
        """Yield tokens as the steps make them, which all responses share."""
        loop, last_s = asyncio.get_running_loop(), arrived_s
        steps = self._steps
        assert steps is not None
        steps.slow_factor = self.faults.slow_factor
        num_taken = len(produced)
        await self.faults.play_due(job.fault, num_taken)
        uncached = len(job.prompt) + num_taken - cached_tokens
        stream = steps.open(uncached, job.length_tokens - num_taken)
        try:
            while len(produced) < job.length_tokens:
                await stream.token()
                for gate in self.gates.values():
                    await gate.wait()
                now_s, first = loop.time(), len(produced) == num_taken
                (self.metrics.ttft if first else self.metrics.itl).observe(now_s - last_s)
                last_s = now_s
                self.num_steps = steps.num_steps
                produced.append(job.token_at(len(produced)))
                self.metrics.generation_tokens += 1
                yield tuple(produced) if first else (produced[-1],)
                await self.faults.play_due(job.fault, len(produced))
        finally:
            steps.close(stream)

    async def _tokens(
        self, job: Job, produced: list[int], arrived_s: float, cached_tokens: int
    ) -> AsyncGenerator[tuple[int, ...], None]:
        """Yield tokens at fixed times after the request came, whatever else runs and is cached."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self.settings.ttft_s * self.faults.slow_factor
        last_s, num_taken = arrived_s, len(produced)
        if self.settings.poison and token_of(self.settings.poison) in job.prompt:
            await asyncio.sleep(_STEP_S)
            self.faults.play(Fault(kind="die"))
        await self.faults.play_due(job.fault, num_taken)
        while len(produced) < job.length_tokens:
            await self._compute_until(due_s)
            now_s = loop.time()
            first = len(produced) == num_taken
            (self.metrics.ttft if first else self.metrics.itl).observe(now_s - last_s)
            last_s = now_s
            due_s = (due_s if now_s - due_s < _CATCH_UP_S else now_s) + self.settings.itl_s * self.faults.slow_factor
            produced.append(job.token_at(len(produced)))
            self.metrics.generation_tokens += 1
            yield tuple(produced) if first else (produced[-1],)
            await self.faults.play_due(job.fault, len(produced))

    async def _compute_until(self, due_s: float) -> None:
        """Make engine steps until ``due_s`` and until every gate is open; a long prefill has many steps."""
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
        noted = self.prefixes.note(job.named, job.prompt, job.adapter, job.salt)
        entry = (job, place, noted)
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
            job, place, noted = self._waiting[0]
            if place.done():  # its client has gone
                self._waiting.popleft()
                continue
            reservation = self._pool.reserve(
                job.prompt, job.total_tokens, adapter=job.adapter, salt=job.salt, report=self.prefixes.unsure
            )
            if reservation is None:
                return
            self._waiting.popleft()
            self._num_running += 1
            self.metrics.prompt_tokens += len(job.prompt)
            self.metrics.prefix_queries_tokens += len(job.prompt)
            self.metrics.prefix_hits_tokens += reservation.cached_tokens
            self.prefixes.found(job.named, noted, len(job.prompt), reservation.cached_tokens)
            place.set_result(reservation)

    def _tell(self, event: KvEvent) -> None:
        self.prefixes.take(event)
        self._on_kv_event(event)

    def load(self) -> tuple[int, int, int, float]:
        """Return what it tells gateways of its load: running, waiting, prompt tokens that wait, used KV cache."""
        queued = sum(len(job.prompt) for job, *_ in self._waiting)
        return self._num_running, len(self._waiting), queued, self._pool.used_ratio

    def _finish(self, reservation: Reservation, token_ids: tuple[int, ...]) -> None:
        self._num_running -= 1
        self._pool.release(reservation, token_ids)
        self._admit_waiting()
