"""An engine that makes every step and moves every block one by one: slow, plain, and the oracle of the twin's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import COLD_AFTER_S, StepTime


@dataclass(eq=False)
class NaiveJob:
    """A request: the names of its prompt's whole blocks, and what happens to it."""

    arrival_s: float
    prompt: int
    output: int
    names: list[bytes]
    generated: int = 0
    computed: int = 0
    target: int = 0
    blocks: list[int] = field(default_factory=list)  # numbers of the blocks that it has, in order
    first_s: float = -1.0
    end_s: float = -1.0
    cached: int = -1
    preemptions: int = 0


class NaiveEngine:
    """Runs jobs to their ends."""

    def __init__(self, time: StepTime, limits: EngineLimits) -> None:
        self.time, self.limits = time, limits
        self.queue = list(range(limits.kv_blocks))  # free blocks, in the order in which they are taken
        self.refs = [0] * limits.kv_blocks
        self.name_of: dict[int, bytes] = {}
        self.block_of: dict[bytes, int] = {}
        self.waiting: deque[NaiveJob] = deque()
        self.running: list[NaiveJob] = []

    def run(self, jobs: list[NaiveJob]) -> None:
        """Play jobs, which are sorted by arrival."""
        coming, now_s = deque(jobs), 0.0
        ended_s = -COLD_AFTER_S
        while coming or self.waiting or self.running:
            idle = not self.waiting and not self.running
            rested = idle and max(now_s, coming[0].arrival_s) - ended_s >= COLD_AFTER_S
            if idle and coming[0].arrival_s > now_s:  # an idle engine begins at once, with the first that comes
                now_s = coming[0].arrival_s
                self.waiting.append(coming.popleft())
            else:
                while coming and coming[0].arrival_s <= now_s:
                    self.waiting.append(coming.popleft())
            now_s = ended_s = self.step(now_s, self.time.wake_s if rested else 0.0)

    def step(self, now_s: float, wake_s: float = 0.0) -> float:
        """Make one step, and return when it ends. wake_s: that it takes longer"""
        size = self.limits.block_tokens
        preempted = False
        while sum(self.lacks(job) for job in self.decoding()) > len(self.queue):
            job = self.running.pop()
            self.free(job)
            job.preemptions += 1
            self.waiting.appendleft(job)
            preempted = True
        decoding = self.decoding()
        for job in decoding:
            if self.lacks(job):
                job.blocks.append(self.take())
        parts = self.limits.data_parts
        budget = self.limits.max_num_batched_tokens * parts - len(decoding)
        most = -(-budget // parts)
        chunks: list[tuple[NaiveJob, int]] = []
        for job in self.running:
            if job.computed < job.target:
                budget -= self.chunk(job, min(budget, most), chunks)
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            job = self.waiting[0]
            if not self.reserve(job):
                break
            self.waiting.popleft()
            self.running.append(job)
            budget -= self.chunk(job, min(budget, most), chunks)
        tokens = sum(count for _, count in chunks)
        pairs = sum(count * (job.computed + count / 2) for job, count in chunks)
        read = sum(job.prompt + job.generated for job in decoding)
        now_s += self.time.mixed_s(tokens, pairs, len(decoding), read) + wake_s
        for job in decoding:
            job.generated += 1
            job.computed += 1
            job.target += 1
        for job, count in chunks:
            job.computed += count
            if job.computed == job.target:
                job.generated += 1
                job.first_s = now_s if job.first_s < 0 else job.first_s
        for job in [job for job in self.running if job.generated == job.output]:
            self.running.remove(job)
            self.free(job)
            job.end_s = now_s
        assert all(len(job.blocks) >= -(-job.computed // size) for job in self.running)
        return now_s

    def decoding(self) -> list[NaiveJob]:
        return [job for job in self.running if job.computed == job.target]

    def lacks(self, job: NaiveJob) -> int:
        return int(job.computed + 1 > len(job.blocks) * self.limits.block_tokens)

    def chunk(self, job: NaiveJob, budget: int, chunks: list[tuple[NaiveJob, int]]) -> int:
        count = min(job.target - job.computed, budget)
        if count <= 0:
            return 0
        chunks.append((job, count))
        for at in range(min((job.computed + count) // self.limits.block_tokens, len(job.names))):
            name, block = job.names[at], job.blocks[at]
            if name not in self.block_of and block not in self.name_of:
                self.block_of[name], self.name_of[block] = block, name
        return count

    def reserve(self, job: NaiveJob) -> bool:
        size = self.limits.block_tokens
        target = job.prompt + job.generated
        hits: list[int] = []
        for name in job.names:
            if name not in self.block_of or (len(hits) + 1) * size >= target:
                break
            hits.append(self.block_of[name])
        needed = -(-target // size) - len(hits)
        idle = sum(1 for block in hits if not self.refs[block])
        if needed > len(self.queue) - idle:
            return False
        for block in hits:
            if not self.refs[block]:
                self.queue.remove(block)
            self.refs[block] += 1
        job.blocks = hits + [self.take() for _ in range(needed)]
        job.target, job.computed = target, len(hits) * size
        job.cached = job.computed if job.cached < 0 else job.cached
        return True

    def take(self) -> int:
        block = self.queue.pop(0)
        name = self.name_of.pop(block, None)
        if name is not None:
            del self.block_of[name]
        self.refs[block] = 1
        return block

    def free(self, job: NaiveJob) -> None:
        """Whole blocks without a name go first to the end of the queue, then those with one; the rest to its front."""
        whole = job.computed // self.limits.block_tokens
        named = [block for block in job.blocks if block in self.name_of]
        plain = [block for block in job.blocks[:whole] if block not in self.name_of]
        rest = [block for block in job.blocks[whole:] if block not in self.name_of]
        for block in job.blocks:
            self.refs[block] -= 1
        self.queue += [*plain, *(block for block in reversed(named) if not self.refs[block])]
        self.queue[:0] = rest
        job.blocks, job.computed = [], 0
