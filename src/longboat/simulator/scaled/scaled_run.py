"""Plays requests on a fleet that a scaler counts: replicas start with a cold start and drain without a loss."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator

from longboat.core.policy import ResumePolicy
from longboat.core.scaling import Latency, ModelObservation, StartingReplica, quantiles_among, some_lengths
from longboat.routing.prefixes.prompt import Prompt
from longboat.scaling.scaler import Scaler
from longboat.simulator.engine.job import Job
from longboat.simulator.scaled.scaled_fleet import Moment, ScaledFleet, ScaledResult
from longboat.simulator.scaled.scaled_replica import ScaledReplica
from longboat.simulator.timeline import Timeline
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("simulate_scaled",)

_PATIENCE_S = ResumePolicy().wait_s
"""Seconds without a replica after which the requests that are left get none, as streams in a gateway."""
_REPORTED = 32
"""Newest responses that one gateway reports."""


def simulate_scaled(fleet: ScaledFleet, requests: Iterable[TraceRequest], scaler: Scaler) -> ScaledResult:
    """Play requests, which come in the order of their times, and return what they saw.

    A request goes to the ready replica with the least to do, and waits in the gateway while each has all the sequences
    that it takes at once. Replicas are paid for from the decision until their last request ended, at most until the
    last request of all came.
    """
    return _Run(fleet, iter(requests), scaler).play()


class _Counts:
    """Requests and tokens since the last tick."""

    __slots__ = ("arrived", "ended", "itl_ms", "late", "lengths", "output_tokens", "prompt_tokens", "ttft_ms")

    def __init__(self) -> None:
        self.arrived = self.ended = self.prompt_tokens = self.output_tokens = 0
        self.ttft_ms: list[float] = []
        # of each response that ended
        self.itl_ms: list[float] = []
        self.late: list[bool] = []
        self.lengths: list[tuple[int, int]] = []


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
        is_late = self._fleet.objective.missed_by(ttft_s * 1e3, itl_s * 1e3)
        counts.late.append(is_late)
        if is_late:
            result.late += 1
            result.late_by_s.append(int(job.arrived_s))
        if replica.draining and not replica.requests:
            self._free(replica, now_s)
        elif self._waiting:
            self._pump(now_s)

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
        first = max(0, counts.ended - _REPORTED) if self._fleet.as_reported else 0  # of those that are known
        late, lengths = counts.late[first:], counts.lengths[first:]
        latency = Latency(
            priority=1,
            ended=counts.ended,
            ttft_ms=quantiles_among(counts.ttft_ms),
            itl_ms=quantiles_among(counts.itl_ms[first:]),
            late=sum(late),
            judged=len(late),
        )
        return ModelObservation(
            model=self._fleet.model,
            seconds=self._fleet.tick_s,
            arrived=counts.arrived,
            prompt_tokens=counts.prompt_tokens,
            output_tokens=counts.output_tokens,
            ended=counts.ended,
            lengths=some_lengths(lengths),
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
