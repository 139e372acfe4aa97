"""Plays requests on a fleet that a scaler counts: replicas start with a cold start and drain without a loss."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator

from longboat.core.policy import ResumePolicy
from longboat.core.scaling import Latency, ModelObservation, Quantiles, StartingReplica
from longboat.routing.prefixes.prompt import Prompt
from longboat.scaling.scaler import Scaler
from longboat.simulator.engine.job import Job
from longboat.simulator.results.histogram import Histogram
from longboat.simulator.scaled.scaled_fleet import Moment, ScaledFleet, ScaledResult
from longboat.simulator.scaled.scaled_replica import ScaledReplica
from longboat.simulator.timeline import Timeline
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("simulate_scaled",)

_PATIENCE_S = ResumePolicy().wait_s
"""Seconds without a replica after which the requests that are left get none, as streams in a gateway."""
_SAMPLE = 32
"""Requests whose lengths one observation has."""


def simulate_scaled(fleet: ScaledFleet, requests: Iterable[TraceRequest], scaler: Scaler) -> ScaledResult:
    """Play requests, which come in the order of their times, and return what they saw.

    A request goes to the ready replica with the least to do, and waits in the gateway while each has all the sequences
    that it takes at once. Replicas are paid for from the decision until their last request ended, at most until the
    last request of all came.
    """
    return _Run(fleet, iter(requests), scaler).play()


class _Counts:
    """Requests and tokens since the last tick."""

    __slots__ = ("arrived", "ended", "gaps_s", "itl_ms", "late", "lengths", "output_tokens", "prompt_tokens", "ttft_ms")

    def __init__(self) -> None:
        self.arrived = self.ended = self.late = self.prompt_tokens = self.output_tokens = 0
        self.ttft_ms: list[float] = []
        self.itl_ms: list[float] = []
        self.lengths: list[tuple[int, int]] = []
        self.gaps_s = Histogram()


class _Run:  # size: the state of one run
    """A run under way."""

    __slots__ = (
        "_arrived",
        "_counts",
        "_draw",
        "_fleet",
        "_replicas",
        "_requests",
        "_result",
        "_running",
        "_scaler",
        "_timeline",
        "_waiting",
        "_wanted",
    )

    def __init__(self, fleet: ScaledFleet, requests: Iterator[TraceRequest], scaler: Scaler) -> None:
        self._fleet, self._requests, self._scaler = fleet, requests, scaler
        self._timeline = Timeline()
        self._draw = random.Random(fleet.seed)
        self._result = ScaledResult()
        self._counts = _Counts()
        self._waiting: deque[Job] = deque()
        self._arrived = self._running = 0
        self._wanted = fleet.initial
        self._replicas = [ScaledReplica(fleet, self._timeline, self, 0.0, 0.0) for _ in range(fleet.initial)]

    def play(self) -> ScaledResult:
        """Play everything."""
        tick_s = self._fleet.tick_s
        last_s = 0.0
        for request in self._requests:
            while tick_s <= request.at_s:
                self._until(tick_s)
                self._tick(tick_s)
                tick_s += self._fleet.tick_s
            self._until(request.at_s)
            self._arrive(request)
            last_s = request.at_s
        self._result.span_s = last_s
        self._result.replica_s += sum(last_s - replica.asked_s for replica in self._replicas)
        self._finish(tick_s)
        return self._result

    def _finish(self, tick_s: float) -> None:
        """Serve the requests that are left, as long as there is a replica, or may be one soon."""
        alive_s = tick_s
        while self._running or self._waiting:
            self._until(tick_s)
            self._tick(tick_s)
            alive_s = tick_s if self._replicas else alive_s
            if tick_s - alive_s >= _PATIENCE_S:
                self._result.unserved = len(self._waiting)
                return
            tick_s += self._fleet.tick_s

    def first_token(self, job: Job, now_s: float) -> None:
        """Note the time to a first token."""
        self._counts.ttft_ms.append((now_s - job.arrived_s) * 1e3)

    def gaps(self, first_s: float, growth_s: float, steps: int, sequences: int) -> None:
        """Note single times between tokens, if the scaler sees them."""
        if self._fleet.as_reported:
            self._counts.gaps_s.add_series(first_s, growth_s, steps, sequences)

    def ended(self, replica: ScaledReplica, job: Job, now_s: float) -> None:
        """Note how a request was served, and give its place to one that waits."""
        counts, result = self._counts, self._result
        ttft_s = job.first_s - job.arrived_s
        itl_s = (now_s - job.first_s) / (job.output_tokens - 1) if job.output_tokens > 1 else 0.0
        self._running -= 1
        counts.ended += 1
        counts.prompt_tokens += job.prompt.num_tokens
        counts.output_tokens += job.output_tokens
        counts.itl_ms.append(itl_s * 1e3)
        counts.lengths.append((job.prompt.num_tokens, job.output_tokens))
        result.requests += 1
        result.ttft_s.append(ttft_s)
        result.itl_s.append(itl_s)
        if self._is_late(ttft_s, itl_s):
            counts.late += 1
            result.late += 1
            result.late_by_s.append(int(job.arrived_s))
        if replica.draining and not replica.requests:
            self._free(replica, now_s)
        elif self._waiting:
            self._pump(now_s)

    def _is_late(self, ttft_s: float, itl_s: float) -> bool:
        objective = self._fleet.objective
        too_slow = objective.ttft_ms is not None and ttft_s * 1e3 > objective.ttft_ms
        return too_slow or (objective.itl_ms is not None and itl_s * 1e3 > objective.itl_ms)

    def _until(self, time_s: float) -> None:
        """Let the engines compute until a time."""
        timeline = self._timeline
        while timeline.next_s <= time_s:
            timeline.step()

    def _arrive(self, request: TraceRequest) -> None:
        if not self._fleet.limits.holds(request.prompt_tokens + request.output_tokens):
            self._result.too_long += 1
            return
        self._arrived += 1
        prompt = Prompt(f"{self._arrived}", request.prompt_tokens)
        self._counts.arrived += 1
        self._waiting.append(Job(prompt, request.output_tokens, request.at_s))
        self._pump(request.at_s)

    def _pump(self, now_s: float) -> None:
        """Send waiting requests to replicas that have a place."""
        while self._waiting:
            replica = self._idlest(now_s)
            if replica is None:
                return
            self._running += 1
            replica.take(self._waiting.popleft(), now_s)

    def _idlest(self, now_s: float) -> ScaledReplica | None:
        time, most = self._fleet.time, self._fleet.limits.max_num_seqs
        best, least = None, float("inf")
        for replica in self._replicas:
            if replica.ready_s <= now_s and not replica.draining and replica.requests < most:
                cost = time.prompt_token_s * replica.pending_tokens + time.base_s * replica.requests
                if cost < least:
                    best, least = replica, cost
        return best

    def _tick(self, now_s: float) -> None:
        """Observe, decide and act."""
        self._pump(now_s)  # replicas may have become ready
        at_s = self._fleet.begin_s + now_s
        starting = [replica for replica in self._replicas if replica.ready_s > now_s]
        draining = sum(replica.draining for replica in self._replicas)
        ready = len(self._replicas) - len(starting) - draining
        counts, self._counts = self._counts, _Counts()
        self._scaler.observe(at_s, [self._observation(counts, now_s, ready, starting, draining)])
        (decision,) = self._scaler.decide(at_s)
        if decision.replicas != decision.before:
            self._result.decisions.append(decision)
        self._wanted = decision.replicas
        self._resize(now_s)
        self._result.moments.append(
            Moment(
                at_s=now_s,
                wanted=self._wanted,
                ready=ready,
                starting=len(starting),
                draining=draining,
                waiting=len(self._waiting),
                running=self._running,
                arrived=counts.arrived,
            )
        )

    def _observation(
        self, counts: _Counts, now_s: float, ready: int, starting: list[ScaledReplica], draining: int
    ) -> ModelObservation:
        as_reported, objective, gaps_s = self._fleet.as_reported, self._fleet.objective, counts.gaps_s
        latency = Latency(
            priority=1,
            ended=counts.ended,
            ttft_ms=_quantiles(counts.ttft_ms),
            itl_ms=_quantiles([gaps_s.quantile(0.5) * 1e3] if gaps_s.count else counts.itl_ms),
            itl_mean_ms=gaps_s.mean * 1e3 if gaps_s.count else None,
            late=None if as_reported and objective.itl_ms is not None else counts.late,
        )
        return ModelObservation(
            model=self._fleet.model,
            seconds=self._fleet.tick_s,
            arrived=counts.arrived,
            prompt_tokens=counts.prompt_tokens,
            output_tokens=counts.output_tokens,
            ended=counts.ended,
            lengths=() if as_reported else tuple(counts.lengths[:: max(1, -(-len(counts.lengths) // _SAMPLE))]),
            running=self._running,
            waiting=len(self._waiting),
            ready=ready,
            starting=tuple(StartingReplica(age_s=now_s - replica.asked_s) for replica in starting),
            draining=draining,
            latencies=(latency,),
            cold_start_s=self._fleet.cold_start_s,
        )

    def _resize(self, now_s: float) -> None:
        """Start replicas, or let some go: first those that are starting, youngest first; then the least busy ones."""
        staying = [replica for replica in self._replicas if not replica.draining]
        for _ in range(self._wanted - len(staying)):
            self._result.starts += 1
            spread = self._fleet.cold_start_spread
            cold_s = self._fleet.cold_start_s * (1.0 + spread * (2.0 * self._draw.random() - 1.0))
            self._replicas.append(ScaledReplica(self._fleet, self._timeline, self, now_s, now_s + cold_s))
        leaving = len(staying) - self._wanted
        if leaving > 0:
            staying.sort(key=lambda one: (one.ready_s <= now_s, -one.ready_s if one.ready_s > now_s else one.requests))
            for replica in staying[:leaving]:
                replica.draining = True
                if not replica.requests:
                    self._free(replica, now_s)

    def _free(self, replica: ScaledReplica, now_s: float) -> None:
        self._replicas.remove(replica)
        if not self._result.span_s:
            self._result.replica_s += now_s - replica.asked_s


def _quantiles(values: list[float]) -> Quantiles | None:
    if not values:
        return None
    values.sort()
    p50, p90, p95, p99 = (values[min(len(values) - 1, int(share * len(values)))] for share in (0.5, 0.9, 0.95, 0.99))
    return Quantiles(p50=p50, p90=p90, p95=p95, p99=p99)
