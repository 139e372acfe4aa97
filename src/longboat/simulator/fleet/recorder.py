"""Collects what the requests of a run see."""

from __future__ import annotations

from longboat.simulator.engine.job import Job
from longboat.simulator.fleet.fleet import Fleet
from longboat.simulator.results.histogram import Histogram
from longboat.simulator.results.result import ReplicaResult, Result

__all__ = ("Recorder",)


class Recorder:
    """Adds up the requests of a run as they end. Tokens leave engines at the times given, and reach gateways later."""

    __slots__ = ("_network_s", "_objectives", "_result", "in_flight", "itl_s", "retries")

    def __init__(self, policy: str, fleet: Fleet) -> None:
        self._result = Result(policy=policy, replicas=[ReplicaResult(key=one.key) for one in fleet.replicas])
        self._objectives = fleet.objectives
        self._network_s = fleet.network_s
        self.itl_s: Histogram = self._result.itl_s
        self.in_flight = 0  # requests that arrived and have not ended
        self.retries = 0

    def arrived(self) -> None:
        """Count a request that came."""
        self.in_flight += 1

    def first_token(self, job: Job, replica: int) -> None:
        """Note the first token of a request."""
        result = self._result
        result.arrived_s.append(job.arrived_s)
        result.ttft_s.append(self._ttft_s(job))
        result.queue_s.add(job.granted_s - job.arrived_s)
        result.prompt_tokens += job.prompt.num_tokens
        result.cached_tokens += job.cached_tokens
        one = result.replicas[replica]
        one.requests += 1
        one.prompt_tokens += job.prompt.num_tokens
        one.cached_tokens += job.cached_tokens

    def ended(self, job: Job, now_s: float) -> None:
        """Note the end of a request."""
        result = self._result
        self.in_flight -= 1
        result.requests += 1
        result.output_tokens += job.output_tokens
        result.preemptions += job.preemptions
        result.e2e_s.add(now_s + self._network_s - job.arrived_s)
        itl_s = (now_s - job.first_s) / (job.output_tokens - 1) if job.output_tokens > 1 else 0.0
        if self._ttft_s(job) <= self._objectives.ttft_s and itl_s <= self._objectives.itl_s:
            result.good += 1

    def _ttft_s(self, job: Job) -> float:
        return job.first_s + self._network_s - job.arrived_s

    def refused(self, *, too_long: bool) -> None:
        """Note a request that gets no answer. too_long: no replica can hold it; else the queue refused it"""
        self.in_flight -= 1
        if too_long:
            self._result.too_long += 1
        else:
            self._result.rejected += 1

    def busy(self, replica: int, seconds: float) -> None:
        """Note the time that an engine computed."""
        self._result.replicas[replica].busy_s += seconds

    def result(self, span_s: float) -> Result:
        """Return what was collected."""
        self._result.retries = self.retries
        self._result.span_s = span_s
        return self._result
