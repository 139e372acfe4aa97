"""The sequences of an engine that decode, as sums: a step costs no work for each of them."""

from __future__ import annotations

from heapq import heappop, heappush

from longboat.simulator.engine.job import Job

__all__ = ("DecodeBatch",)


class DecodeBatch:
    """Jobs that get one token with each step, until the step with which each ends."""

    __slots__ = ("_block_tokens", "_ending", "_ends", "_phases", "kv_tokens", "num_jobs", "num_steps")

    def __init__(self, block_tokens: int) -> None:
        self.num_jobs = 0
        self.num_steps = 0  # steps so far
        self.kv_tokens = 0  # that the next step reads
        self._ends: list[int] = []  # a heap of the steps with which jobs end
        self._ending: dict[int, list[Job]] = {}  # by these steps, in the order of entry; some have left
        self._block_tokens = block_tokens
        self._phases = [0] * block_tokens  # jobs by the remainder of the steps with which they need another block

    def enter(self, job: Job) -> None:
        """Add a job whose ``target`` tokens are computed and whose newest token is to be."""
        job.decoding = True
        job.entry_step = self.num_steps
        job.finish_step = self.num_steps + job.output_tokens - job.generated
        ending = self._ending.get(job.finish_step)
        if ending is None:
            self._ending[job.finish_step] = [job]
            heappush(self._ends, job.finish_step)
        else:
            ending.append(job)
        self.num_jobs += 1
        self.kv_tokens += job.target + 1
        self._phases[(self.num_steps - job.target) % self._block_tokens] += 1

    def leave(self, job: Job) -> None:
        """Remove a job, and note the tokens that it got."""
        steps = self.num_steps - job.entry_step
        job.decoding = False
        job.generated += steps
        job.target += steps
        job.computed = job.target
        self.num_jobs -= 1
        self.kv_tokens -= job.target + 1
        self._phases[(job.entry_step - (job.target - steps)) % self._block_tokens] -= 1

    def fits(self, steps: int, blocks: int) -> bool:
        """Return whether as many blocks are enough for the next ``steps`` steps."""
        return (steps // self._block_tokens + 1) * self.num_jobs <= blocks or self.blocks_needed(steps) <= blocks

    def blocks_needed(self, steps: int) -> int:
        """Return the blocks that the jobs need for the next ``steps`` steps, beyond those that they have."""
        size, phases = self._block_tokens, self._phases
        needed = steps // size * self.num_jobs
        phase = self.num_steps % size
        for _ in range(steps % size):
            needed += phases[phase]
            phase = phase + 1 if phase + 1 < size else 0
        return needed

    def steps_to_finish(self) -> int:
        """Return the steps until the next job ends; there must be a job."""
        while True:
            step = self._ends[0]
            for job in self._ending[step]:
                if job.decoding and job.finish_step == step:
                    return step - self.num_steps
            del self._ending[heappop(self._ends)]

    def advance(self, steps: int) -> list[Job]:
        """Give each job as many tokens, and return those that end; they have left."""
        self.num_steps += steps
        self.kv_tokens += steps * self.num_jobs
        ended: list[Job] = []
        while self._ends and self._ends[0] <= self.num_steps:
            step = heappop(self._ends)
            for job in self._ending.pop(step):
                if job.decoding and job.finish_step == step:
                    self.leave(job)
                    ended.append(job)
        return ended
