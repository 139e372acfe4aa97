"""One replica that comes and goes."""

from __future__ import annotations

from typing import Protocol

from longboat.simulator.engine.engine import SimEngine
from longboat.simulator.engine.job import Job
from longboat.simulator.scaled.scaled_fleet import ScaledFleet
from longboat.simulator.timeline import Timeline

__all__ = ("ReplicaOwner", "ScaledReplica")


class ReplicaOwner(Protocol):
    """What a replica tells of its requests."""

    def first_token(self, job: Job, now_s: float) -> None:
        """Note the first token of a response."""

    def ended(self, replica: ScaledReplica, job: Job, now_s: float) -> None:
        """Note the end of a response."""


class ScaledReplica:
    """A replica: starting until ``ready_s``, then serving, then perhaps draining until its last request ended."""

    __slots__ = ("_owner", "asked_s", "draining", "engine", "pending_tokens", "ready_s", "requests")

    def __init__(
        self, fleet: ScaledFleet, timeline: Timeline, owner: ReplicaOwner, asked_s: float, ready_s: float
    ) -> None:
        self.asked_s = asked_s
        self.ready_s = ready_s
        self.draining = False
        self.requests = 0  # under way here
        self.pending_tokens = 0  # of prompts without a first token
        self._owner = owner
        self.engine = SimEngine(fleet.time, fleet.limits, timeline, self)

    def take(self, job: Job, now_s: float) -> None:
        """Take a request."""
        self.requests += 1
        self.pending_tokens += job.prompt.num_tokens
        self.engine.submit(job, now_s)

    def first_token(self, job: Job, now_s: float) -> None:
        """Note the first token of one of its responses."""
        self.pending_tokens -= job.prompt.num_tokens
        self._owner.first_token(job, now_s)

    def ended(self, job: Job, now_s: float) -> None:
        """Note the end of one of its responses."""
        self.requests -= 1
        self._owner.ended(self, job, now_s)

    def gaps(self, first_s: float, growth_s: float, steps: int, sequences: int) -> None:
        """Ignore single times between tokens: responses are judged by their mean."""
