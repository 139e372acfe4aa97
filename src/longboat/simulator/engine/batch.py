"""The jobs of one engine, and what its next step computes of them: the scheduler, without a clock."""

from __future__ import annotations

from collections import deque

from longboat.simulator.engine.block_cache import BlockCache
from longboat.simulator.engine.decode_batch import DecodeBatch
from longboat.simulator.engine.job import Job
from longboat.simulator.engine.job_blocks import free_blocks, name_blocks, reserve
from longboat.simulator.engine.limits import EngineLimits

__all__ = ("Batch",)


class Batch:
    """Jobs that wait, that have their prompts computed, and that decode, with the blocks that they hold."""

    __slots__ = (
        "_blocks_ahead", "_most_chunk", "_prefilling", "_waiting", "cache", "chunks", "decodes", "limits", "running",
        "waiting_tokens",
    )  # fmt: skip

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.cache = BlockCache(limits.kv_blocks)
        self.decodes = DecodeBatch(limits.block_tokens)  # of those that run, the ones that decode
        self.chunks: list[Job] = []  # whose prompts the step under way computes
        self.waiting_tokens = 0  # of prompts that wait
        self.running: dict[Job, None] = {}  # in the order in which they were taken in
        self._waiting: deque[Job] = deque()
        self._prefilling: list[Job] = []  # those that run whose prompts are not yet computed
        self._most_chunk = 0  # tokens of one prompt that the next step computes at most: those of a data part
        self._blocks_ahead = 0  # blocks that the decoding jobs got for the first of the steps under way when it began

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def queued_tokens(self) -> int:
        """Return the tokens of prompts that are yet to compute; cached ones of requests that wait count too."""
        return self.waiting_tokens + sum([job.target - job.computed for job in self._prefilling])

    def jobs(self) -> list[Job]:
        """Return all jobs, those that run first."""
        return [*self.running, *self._waiting]

    def add(self, job: Job) -> bool:
        """Let a job wait. Return whether the next step might take it in."""
        goes_next = not self._waiting and len(self.running) < self.limits.max_num_seqs
        self._waiting.append(job)
        self.waiting_tokens += job.prompt.num_tokens + job.generated
        return goes_next

    def plan(self, now_s: float) -> bool:
        """Choose what the next step computes. Return whether a job had to go back to the queue for it."""
        self.chunks = []
        preempted = self._make_room(now_s)
        self._blocks_ahead = self.decodes.blocks_needed(1) if self._prefilling or self._waiting else 0
        self.cache.allocate(self._blocks_ahead)
        parts = self.limits.data_parts
        budget = self.limits.max_num_batched_tokens * parts - self.decodes.num_jobs
        self._most_chunk = -(-budget // parts)
        for job in self._prefilling:
            budget -= self._plan_chunk(job, budget)
        if not preempted:
            self._take_in(budget)
        return preempted

    def steps_alike(self) -> int:
        """Return the steps until a job ends or the cache is full, where all that run decode."""
        steps = self.decodes.steps_to_finish()
        while steps > 1 and not self.decodes.fits(steps, self.cache.free + self._blocks_ahead):
            steps //= 2
        return steps

    def end_decodes(self, steps: int, *, only: bool) -> list[Job]:
        """End steps, and return the jobs that have all of their output with them. only: they computed no prompts"""
        if only:
            self.cache.allocate(self.decodes.blocks_needed(steps) - self._blocks_ahead)
        return self.decodes.advance(steps)

    def end_chunk(self, job: Job) -> bool:
        """Note that a chunk of a prompt is computed. Return whether it was the last one."""
        job.computed += job.chunk
        if job.computed < job.target:
            return False
        self._prefilling.remove(job)
        return True

    def end(self, job: Job) -> None:
        """Let go of a job that has all of its output."""
        del self.running[job]
        free_blocks(job, self.cache, self.limits.block_tokens)

    def drop(self) -> None:
        """Forget all jobs that wait and run."""
        self._waiting.clear()
        self.running.clear()
        self._prefilling.clear()

    def _make_room(self, now_s: float) -> bool:
        """Make room for one step of all that decode: the job that was taken in last goes back to the queue."""
        preempted = False
        while not self.decodes.fits(1, self.cache.free):
            job, _ = self.running.popitem()
            if job.decoding:
                self.decodes.leave(job)
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
        while self._waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            job = self._waiting[0]
            if not reserve(job, self.cache, self.limits.block_tokens, self.limits.prefix_caching):
                return
            self._waiting.popleft()
            self.waiting_tokens -= job.target
            self.running[job] = None
            self._prefilling.append(job)
            budget -= self._plan_chunk(job, budget)

    def _plan_chunk(self, job: Job, budget: int) -> int:
        job.chunk = min(job.target - job.computed, budget, self._most_chunk)
        if job.chunk <= 0:
            return 0
        self.chunks.append(job)
        if self.limits.prefix_caching:
            name_blocks(job, self.cache, self.limits.block_tokens)
        return job.chunk
