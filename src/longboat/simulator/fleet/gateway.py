"""One simulated gateway: the production queue and router of one model, in front of simulated engines."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from longboat.core.policy import QueuePolicy, ResumePolicy
from longboat.routing.endpoint import RoutedEndpoint
from longboat.routing.queue.fair_queue import UNBOUNDED, Granted, Rejected, Scheduler, Ticket
from longboat.routing.router import Router
from longboat.simulator.engine.job import Job

__all__ = ("Carrier", "Endpoint", "SimGateway")

_PATIENCE_S: Final = ResumePolicy().wait_s
"""Longest wait for a replica while none is ready, as of a stream. After it, new requests are refused at once."""


class Endpoint(RoutedEndpoint):
    """A replica as one gateway sees it."""

    __slots__ = ("at", "capacity", "key", "outstanding", "ready", "sequences", "suspect")
    capacity: int | None
    key: str
    outstanding: int
    ready: bool
    suspect: bool

    def __init__(self, at: int, key: str, capacity: int | None, sequences: int) -> None:
        self.at = at  # number of the replica in the fleet
        self.key = key
        self.capacity = capacity  # requests of this gateway that it may have; None: no limit
        self.sequences = sequences  # that its engine runs at once
        self.ready = False
        self.suspect = False
        self.outstanding = 0  # requests that this gateway sent there and that have not ended

    def holds(self, adapter: str) -> bool:
        """Return whether it has the adapter in memory: simulated replicas serve none."""
        return False


class Carrier(Protocol):
    """What a gateway needs of the network."""

    def carry(self, job: Job, replica: int, now_s: float) -> None:
        """Bring a request to a replica."""

    def refused(self, job: Job, now_s: float) -> None:
        """Note that a request gets no place in the queue, or not in time, or no replica."""

    def waits(self, now_s: float) -> None:
        """Note that requests wait in a gateway: ``sweep`` is to be called until none does."""


class SimGateway:
    """A gateway process: it takes requests in, lets them wait for slots, and routes them."""

    __slots__ = ("_away_s", "_carrier", "_parked", "_slots", "_turn", "endpoints", "router", "scheduler")

    def __init__(self, router: Router, queue: QueuePolicy, endpoints: list[Endpoint], carrier: Carrier) -> None:
        self.router = router
        self.scheduler = Scheduler(queue)
        self.endpoints = endpoints
        self._carrier = carrier
        self._parked: deque[tuple[float, Job]] = deque()  # requests without a ready replica, and since when they wait
        self._away_s = 0.0  # since when no replica is ready
        self._slots = 0
        self._turn = 0

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for a slot, or for a replica."""
        return self.scheduler.num_waiting + len(self._parked)

    def arrived(self, job: Job, now_s: float) -> None:
        """Take a request in."""
        if not self._slots:
            self._park(job, now_s)
            return
        limit = job.prompt.max_output_tokens
        cost = job.prompt.num_tokens + (job.output_tokens if limit is None else limit)
        ticket = job.ticket = Ticket("", 1.0, 0, cost, now_s, payload=job)
        verdict = self.scheduler.offer(ticket, now_s=now_s, slots=self._slots, busy=0)
        if isinstance(verdict, Granted):
            self._dispatch(job, now_s)
        elif isinstance(verdict, Rejected):
            self._refuse(job, now_s)
        else:
            self._carrier.waits(now_s)

    def first_token(self, job: Job, cached_tokens: int | None, now_s: float) -> None:
        """Take the first token of a response, with what its engine found in the cache; None: it does not say."""
        self.router.first_token(job.prompt, cached_tokens=cached_tokens, now_s=now_s)
        if cached_tokens is not None and not job.retries:
            self.router.answered(
                self.endpoints[job.replica].key,
                expected_tokens=job.expected_tokens,
                cached_tokens=cached_tokens,
                prompt_tokens=job.prompt.num_tokens,
            )

    def ended(self, job: Job, now_s: float) -> None:
        """Take the end of a response."""
        self._left(job, now_s)
        ticket = job.ticket
        assert ticket is not None
        self.scheduler.release(ticket, now_s=now_s)
        self.scheduler.learn(ticket, used_tokens=job.prompt.num_tokens + job.output_tokens, served=True)
        job.ticket = None  # which has the job: without this cycle, both are freed at once
        self.pump(now_s)

    def again(self, job: Job, now_s: float) -> None:
        """Send a request whose replica died to another one; it keeps its slot."""
        self._left(job, now_s)
        if self._slots:
            self._dispatch(job, now_s)
        else:
            self._park(job, now_s)

    def pump(self, now_s: float) -> None:
        """Let requests go that wait, where there are slots."""
        while self.scheduler.num_waiting:
            ticket = self.scheduler.grant_next(now_s=now_s, slots=self._slots, busy=0)
            if ticket is None:
                return
            self._dispatch(ticket.payload, now_s)

    def sweep(self, now_s: float) -> None:
        """End the requests that waited too long."""
        for ticket in self.scheduler.expire(now_s):
            self._refuse(ticket.payload, now_s)
        while self._parked and now_s - self._parked[0][0] >= _PATIENCE_S:
            self._refuse(self._parked.popleft()[1], now_s)
        self.pump(now_s)

    def set_ready(self, replica: int, ready: bool, now_s: float) -> None:
        """Note that a replica may get requests, or may not get any more and has lost what it held."""
        endpoint = self.endpoints[replica]
        endpoint.ready = ready
        had_slots = self._slots > 0
        self._count_slots()
        if not ready:
            self._away_s = now_s if had_slots and not self._slots else self._away_s
            return
        self.router.limit(endpoint.key, endpoint.sequences)
        self.pump(now_s)
        parked, self._parked = self._parked, deque()
        for _, job in parked:
            if job.ticket is None:
                self.arrived(job, now_s)
            else:
                self._dispatch(job, now_s)

    def forget(self, replica: int) -> None:
        """Forget what a replica held."""
        endpoint = self.endpoints[replica]
        self.router.left(endpoint.key)
        if endpoint.ready:  # it came back before the news of its death
            self.router.limit(endpoint.key, endpoint.sequences)

    def _count_slots(self) -> None:
        """Count the slots of ready replicas: one at least, as a gateway has that no slot is left for."""
        slots, any_ready = 0, False
        for endpoint in self.endpoints:
            if endpoint.ready:
                any_ready = True
                slots += UNBOUNDED if endpoint.capacity is None else endpoint.capacity
        self._slots = min(max(slots, int(any_ready)), UNBOUNDED)

    def _dispatch(self, job: Job, now_s: float) -> None:
        self._turn += 1
        if job.retries == 0:
            job.granted_s = now_s
        chosen = self.router.choose(job.prompt, self.endpoints, turn=self._turn, now_s=now_s)
        if chosen is None:  # other gateways' requests, or those that lost their replica, are on its slots
            chosen = self.router.choose(job.prompt, self.endpoints, turn=self._turn, now_s=now_s, overfull=True)
        assert chosen is not None, "a slot was granted, so a replica is ready"
        endpoint, choice, _ = chosen
        endpoint.outstanding += 1
        job.replica = endpoint.at
        job.expected_tokens = choice.cached_tokens
        job.trip = self.router.sent(job.prompt, endpoint.key, cached_tokens=choice.cached_tokens, now_s=now_s)
        self._carrier.carry(job, endpoint.at, now_s)

    def _park(self, job: Job, now_s: float) -> None:
        """Let a request wait for a replica; a new one is refused where the last replica was lost long ago."""
        if job.ticket is None and now_s - self._away_s >= _PATIENCE_S:
            self._refuse(job, now_s)
            return
        self._parked.append((now_s, job))
        self._carrier.waits(now_s)

    def _refuse(self, job: Job, now_s: float) -> None:
        """Let a request go without an answer, and free the slot that it may have from a replica that died."""
        ticket, job.ticket = job.ticket, None
        if ticket is not None:
            self.scheduler.release(ticket, now_s=now_s)
            self.scheduler.learn(ticket, used_tokens=None, served=False)
        self._carrier.refused(job, now_s)

    def _left(self, job: Job, now_s: float) -> None:
        endpoint = self.endpoints[job.replica]
        endpoint.outstanding -= 1
        job.trip = None
        self.router.ended(job.prompt, output_tokens=job.generated, now_s=now_s)
