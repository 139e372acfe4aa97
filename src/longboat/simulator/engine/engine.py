"""One simulated engine: continuous batching as vLLM schedules it.

A step computes one token of each sequence that decodes, and beside them chunks of prompts within a budget of tokens.
While no request waits that could be taken in and no prompt is under way, the engine only decodes: such a stretch of
steps is one action of the timeline, whose length has a closed form.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from longboat.simulator.engine.block_cache import BlockCache
from longboat.simulator.engine.decode_batch import DecodeBatch
from longboat.simulator.engine.host import Host
from longboat.simulator.engine.jitter import Jitter
from longboat.simulator.engine.job import Job, JobListener
from longboat.simulator.engine.job_blocks import blocks_of, free_blocks, name_blocks, reserve
from longboat.simulator.engine.step_time import COLD_AFTER_S, StepTime
from longboat.simulator.timeline import Action, Timeline

__all__ = ("EngineLimits", "SimEngine")

_IDLE_S = -1.0
_EARLY = 1e-9  # part of a step: an arrival that is so shortly after a step's end counts as before it


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The settings of an engine that bound its batches and its cache."""

    kv_blocks: int  # blocks of its KV cache
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    prefix_caching: bool = True


class SimEngine(Action):  # size: one scheduler; the cache, the decoding jobs and the times have classes of their own
    """An engine with jobs that wait, that have their prompts computed, and that decode."""

    __slots__ = (
        "_began_s", "_blocks_ahead", "_chunks", "_decodes", "_host", "_jitter", "_jumping", "_listener", "_pace",
        "_prefilling", "_rested_s", "_running", "_steps", "_time", "_timeline", "_waiting", "_waking", "busy_s",
        "cache", "computed_tokens", "due_s", "limits", "slowness", "waiting_tokens",
    )  # fmt: skip

    def __init__(
        self, time: StepTime, limits: EngineLimits, timeline: Timeline, listener: JobListener, slowness: float = 1.0,
        host: Host | None = None, jitter: Jitter | None = None,
    ) -> None:  # fmt: skip
        self.limits = limits
        self.cache = BlockCache(limits.kv_blocks)
        self.slowness = slowness  # steps take the seconds of the time model times this
        self.due_s = _IDLE_S  # when the steps under way end; below 0: idle
        self.busy_s = 0.0  # that it computed so far
        self.computed_tokens = 0  # prompt tokens that it computed so far
        self.waiting_tokens = 0  # of prompts that wait
        self._time = time
        self._host = host  # that it shares with other engines; None: it has one of its own
        self._jitter = jitter  # of its steps, which are made one by one then; None: steps take what their terms say
        self._rested_s = -COLD_AFTER_S  # when it last became idle
        self._waking = False  # whether the next step is the first of a cold engine
        self._pace = slowness  # seconds of the steps under way, in those of the time model
        self._timeline = timeline
        self._listener = listener
        self._waiting: deque[Job] = deque()
        self._running: dict[Job, None] = {}  # in the order in which they were taken in
        self._prefilling: list[Job] = []  # those of them whose prompts are not yet computed
        self._decodes = DecodeBatch(limits.block_tokens)  # the others
        self._chunks: list[Job] = []  # whose prompts the step under way computes
        self._began_s = 0.0  # when the steps under way began
        self._steps = 0  # how many of them there are until ``due_s``
        self._jumping = False  # whether they only decode
        self._blocks_ahead = 0  # blocks that the decoding jobs got for the first of these steps when it began

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        return 1.0 - self.cache.free / self.cache.total

    @property
    def queued_tokens(self) -> int:
        """Return the tokens of prompts that it has yet to compute; cached ones of requests that wait count too."""
        return self.waiting_tokens + sum([job.target - job.computed for job in self._prefilling])

    def fits(self, job: Job) -> bool:
        """Return whether the job can ever run here."""
        return blocks_of(job.prompt.num_tokens + job.output_tokens, self.limits.block_tokens) <= self.cache.total

    def jobs(self) -> list[Job]:
        """Return all jobs that it has, those that run first."""
        return [*self._running, *self._waiting]

    def running(self) -> list[Job]:
        """Return the jobs that run."""
        return list(self._running)

    def tokens_of(self, job: Job, now_s: float) -> int:
        """Return how many tokens of output a job has now."""
        return job.generated + self.steps_at(now_s) - job.entry_step if job.decoding else job.generated

    def steps_at(self, now_s: float) -> int:
        """Return the steps with decoding sequences that it has made until now."""
        steps = self._decodes.num_steps
        if self._jumping and self.due_s >= 0.0:
            steps += min(int(self._steps_within(now_s) + _EARLY), self._steps)
        return steps

    def submit(self, job: Job, now_s: float) -> None:
        """Take a request into the queue."""
        goes_next = not self._waiting and len(self._running) < self.limits.max_num_seqs
        self._waiting.append(job)
        self.waiting_tokens += job.prompt.num_tokens + job.generated
        if self.due_s < 0.0:
            self._waking = now_s - self._rested_s >= COLD_AFTER_S
            if self._host is not None:
                self._host.began(self, now_s)
            self._begin(now_s)
        elif goes_next:
            self.cut(now_s)

    def cut(self, now_s: float) -> None:
        """End a stretch of decoding with the step that is under way."""
        if self.due_s < 0.0 or not self._jumping:
            return
        steps = max(1, math.ceil(self._steps_within(now_s) - _EARLY))
        if steps < self._steps:
            self._steps = steps
            self._set_due(max(now_s, self._began_s + self._decode_s(steps)))

    def slow_down(self, slowness: float, now_s: float) -> None:
        """Change its speed from the next step on."""
        self.cut(now_s)
        self.slowness = slowness

    def stop(self, now_s: float) -> list[Job]:
        """Drop everything, as an engine does that dies, and return the jobs that it had with their output so far."""
        jobs = self.jobs()
        for job in jobs:
            job.generated = self.tokens_of(job, now_s)
            job.decoding = False
            job.segments = []
            job.last_s = now_s if job.first_s >= 0.0 else job.last_s
        if self._host is not None and self.due_s >= 0.0:
            self._host.ended(self, now_s)
        self.due_s = _IDLE_S
        self._waiting.clear()
        self._running.clear()
        self._prefilling.clear()
        return jobs

    def fire(self, now_s: float) -> None:
        """End the steps under way, and begin the next."""
        if now_s != self.due_s:
            return  # they were cut, and ended before
        self.busy_s += now_s - self._began_s
        if self._decodes.num_jobs:
            self._end_decodes(now_s)
        for job in self._chunks:
            job.computed += job.chunk
            if job.computed == job.target:
                self._prefilling.remove(job)
                self._end_prefill(job, now_s)
        self._begin(now_s)

    def _end_decodes(self, now_s: float) -> None:
        sequences, steps = self._decodes.num_jobs, self._steps
        if self._jumping:
            self.cache.allocate(self._decodes.blocks_needed(steps) - self._blocks_ahead)
        if steps == 1:
            first_s, growth_s = now_s - self._began_s, 0.0
        else:
            first_s, growth_s = self._decode_s(1), self._time.kv_token_s * sequences * self._pace
        self._listener.gaps(first_s, growth_s, steps, sequences)
        for job in self._decodes.advance(steps):
            self._end_job(job, now_s)

    def _end_prefill(self, job: Job, now_s: float) -> None:
        job.generated += 1
        if job.first_s < 0.0:
            job.first_s = now_s
            self._listener.first_token(job, now_s)
        elif job.last_s >= 0.0:
            self._listener.gaps(now_s - job.last_s, 0.0, 1, 1)
        if job.generated < job.output_tokens:
            self._decodes.enter(job)
        else:
            self._end_job(job, now_s)

    def _end_job(self, job: Job, now_s: float) -> None:
        del self._running[job]
        free_blocks(job, self.cache, self.limits.block_tokens)
        self._listener.ended(job, now_s)

    def _begin(self, now_s: float) -> None:
        """Plan the next step, or the next steps where they are alike."""
        self._chunks = []
        preempted = self._make_room(now_s)
        self._blocks_ahead = self._decodes.blocks_needed(1) if self._prefilling or self._waiting else 0
        self.cache.allocate(self._blocks_ahead)
        budget = self.limits.max_num_batched_tokens - self._decodes.num_jobs
        for job in self._prefilling:
            budget -= self._plan_chunk(job, budget)
        if not preempted:
            self._take_in(budget)
        self._began_s = now_s
        self._pace = self.slowness if self._host is None else self.slowness * self._host.slowness
        self._jumping = not self._chunks
        if self._chunks:
            self._steps = 1
            self._set_due(now_s + self._with_jitter(self._mixed_s()))
        elif self._decodes.num_jobs:
            one = preempted or self._jitter is not None  # the next step may take requests in again, or take longer
            self._steps = 1 if one else self._steps_alike()
            self._set_due(now_s + self._with_jitter(self._decode_s(self._steps)))
        else:
            self.due_s = _IDLE_S
            self._rested_s = now_s
            if self._host is not None:
                self._host.ended(self, now_s)

    def _make_room(self, now_s: float) -> bool:
        """Make room for one step of all that decode: the job that was taken in last goes back to the queue."""
        preempted = False
        while self._decodes.blocks_needed(1) > self.cache.free:
            job, _ = self._running.popitem()
            if job.decoding:
                self._decodes.leave(job)
            else:
                self._prefilling.remove(job)
            free_blocks(job, self.cache, self.limits.block_tokens)
            job.preemptions += 1
            job.last_s = now_s if job.first_s >= 0.0 else job.last_s
            self._waiting.appendleft(job)
            self.waiting_tokens += job.prompt.num_tokens + job.generated
            preempted = True
        return preempted

    def _take_in(self, budget: int) -> None:
        """Take requests from the queue, first come first served, while there is budget, a place and memory."""
        while self._waiting and budget > 0 and len(self._running) < self.limits.max_num_seqs:
            job = self._waiting[0]
            if not reserve(job, self.cache, self.limits.block_tokens, self.limits.prefix_caching):
                return
            self._waiting.popleft()
            self.waiting_tokens -= job.target
            self._running[job] = None
            self._prefilling.append(job)
            budget -= self._plan_chunk(job, budget)

    def _plan_chunk(self, job: Job, budget: int) -> int:
        job.chunk = min(job.target - job.computed, budget)
        if job.chunk <= 0:
            return 0
        self._chunks.append(job)
        self.computed_tokens += job.chunk
        if self.limits.prefix_caching:
            name_blocks(job, self.cache, self.limits.block_tokens)
        return job.chunk

    def _steps_alike(self) -> int:
        """Return the steps until a job ends or the cache is full."""
        steps = self._decodes.steps_to_finish()
        while steps > 1 and self._decodes.blocks_needed(steps) - self._blocks_ahead > self.cache.free:
            steps //= 2
        return steps

    def _mixed_s(self) -> float:
        decodes = self._decodes
        tokens, pairs = 0, 0.0
        for job in self._chunks:
            tokens += job.chunk
            pairs += job.chunk * (job.computed + job.chunk / 2.0)
        seconds = self._time.mixed_s(tokens, pairs, decodes.num_jobs, decodes.kv_tokens)
        if self._waking:
            seconds += self._time.wake_s
            self._waking = False
        return seconds * self._pace

    def _with_jitter(self, seconds: float) -> float:
        return seconds if self._jitter is None else max(0.0, seconds + self._jitter.draw())

    def _decode_s(self, steps: int) -> float:
        return self._time.decode_s(steps, self._decodes.num_jobs, self._decodes.kv_tokens) * self._pace

    def _steps_within(self, now_s: float) -> float:
        passed_s = (now_s - self._began_s) / self._pace
        return self._time.steps_within(passed_s, self._decodes.num_jobs, self._decodes.kv_tokens)

    def _set_due(self, due_s: float) -> None:
        self.due_s = due_s
        self._timeline.at(due_s, self)
