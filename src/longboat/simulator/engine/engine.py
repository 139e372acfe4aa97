"""One simulated engine: continuous batching as vLLM schedules it.

A step computes one token of each sequence that decodes, and beside them chunks of prompts within a budget of tokens.
While no request waits that could be taken in and no prompt is under way, the engine only decodes: such a stretch of
steps is one action of the timeline.
"""

from __future__ import annotations

from longboat.simulator.engine.batch import Batch
from longboat.simulator.engine.host import Host
from longboat.simulator.engine.jitter import Jitter
from longboat.simulator.engine.job import Job, JobListener
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import COLD_AFTER_S, StepTime
from longboat.simulator.engine.steps import Steps
from longboat.simulator.timeline import Action, Timeline

__all__ = ("SimEngine",)


class SimEngine(Action):
    """An engine: it makes the steps of its batch, and tells of its jobs."""

    __slots__ = ("_host", "_listener", "_rested_s", "_steps", "_timeline", "batch", "busy_s", "slowness")

    def __init__(
        self, time: StepTime, limits: EngineLimits, timeline: Timeline, listener: JobListener, slowness: float = 1.0,
        host: Host | None = None, jitter: Jitter | None = None,
    ) -> None:  # fmt: skip
        self.batch = Batch(limits)
        self.slowness = slowness  # steps take the seconds of the time model times this
        self.busy_s = 0.0  # that it computed so far
        self._steps = Steps(time, self.batch, jitter)
        self._host = host  # that it shares with other engines; None: it has one of its own
        self._rested_s = -COLD_AFTER_S  # when it last became idle
        self._timeline = timeline
        self._listener = listener

    @property
    def kv_usage(self) -> float:
        cache = self.batch.cache
        return 1.0 - cache.free / cache.total

    def fits(self, job: Job) -> bool:
        """Return whether the job can ever run here."""
        return self.batch.limits.holds(job.prompt.num_tokens + job.output_tokens)

    def tokens_of(self, job: Job, now_s: float) -> int:
        """Return how many tokens of output a job has now."""
        return job.generated + self.steps_at(now_s) - job.entry_step if job.decoding else job.generated

    def steps_at(self, now_s: float) -> int:
        """Return the steps with decoding sequences that it has made until now."""
        return self.batch.decodes.num_steps + self._steps.decodes_done(now_s)

    def submit(self, job: Job, now_s: float) -> None:
        """Take a request into the queue."""
        goes_next = self.batch.add(job)
        if self._steps.due_s < 0.0:
            self._steps.wakes = now_s - self._rested_s >= COLD_AFTER_S
            if self._host is not None:
                self._host.began(self, now_s)
            self._begin(now_s)
        elif goes_next:
            self.cut(now_s)

    def cut(self, now_s: float) -> None:
        """End a stretch of decoding with the step that is under way."""
        if self._steps.cut(now_s):
            self._timeline.at(self._steps.due_s, self)

    def slow_down(self, slowness: float, now_s: float) -> None:
        """Change its speed from the next step on."""
        self.cut(now_s)
        self.slowness = slowness

    def stop(self, now_s: float) -> list[Job]:
        """Drop everything, as an engine does that dies, and return the jobs that it had with their output so far."""
        jobs = self.batch.jobs()
        for job in jobs:
            job.generated = self.tokens_of(job, now_s)
            job.decoding = False
            job.segments = []
            job.last_s = now_s if job.first_s >= 0.0 else job.last_s
        if self._host is not None and self._steps.due_s >= 0.0:
            self._host.ended(self, now_s)
        self._steps.end()
        self.batch.drop()
        return jobs

    def fire(self, now_s: float) -> None:
        """End the steps under way, and begin the next."""
        steps, batch = self._steps, self.batch
        if now_s != steps.due_s:
            return  # they were cut, and ended before
        self.busy_s += now_s - steps.began_s
        if batch.decodes.num_jobs:
            first_s, growth_s = steps.gaps(now_s)
            self._listener.gaps(first_s, growth_s, steps.count, batch.decodes.num_jobs)
            for job in batch.end_decodes(steps.count, only=steps.only_decode):
                self._end_job(job, now_s)
        for job in batch.chunks:
            if batch.end_chunk(job):
                self._end_prompt(job, now_s)
        self._begin(now_s)

    def _end_prompt(self, job: Job, now_s: float) -> None:
        job.generated += 1
        if job.first_s < 0.0:
            job.first_s = now_s
            self._listener.first_token(job, now_s)
        elif job.last_s >= 0.0:
            self._listener.gaps(now_s - job.last_s, 0.0, 1, 1)
        if job.generated < job.output_tokens:
            self.batch.decodes.enter(job)
        else:
            self._end_job(job, now_s)

    def _end_job(self, job: Job, now_s: float) -> None:
        self.batch.end(job)
        self._listener.ended(job, now_s)

    def _begin(self, now_s: float) -> None:
        """Begin the next step, or the next steps where they are alike."""
        steps, batch = self._steps, self.batch
        preempted = batch.plan(now_s)
        pace = self.slowness if self._host is None else self.slowness * self._host.slowness
        if batch.chunks:
            steps.begin_prompts(now_s, pace)
        elif batch.decodes.num_jobs:
            one = preempted or steps.are_single  # the next step may take requests in again
            steps.begin_decodes(now_s, 1 if one else batch.steps_alike(), pace)
        else:
            steps.end()
            self._rested_s = now_s
            if self._host is not None:
                self._host.ended(self, now_s)
            return
        self._timeline.at(steps.due_s, self)
