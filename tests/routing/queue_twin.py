"""Simulates gateways and an engine in virtual time: real schedulers and leases, predicted service times."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from longboat.core.policy import QueuePolicy
from longboat.routing.capacity.slots import corrected, lease, lease_by_tenant
from longboat.routing.queue.fair_queue import Granted, Queued, Rejected, Scheduler, Ticket

PREFILL_TOKENS_PER_S = 4000.0
DECODE_S_PER_TOKEN = 0.02
TICK_S = 0.1
LEASE_S = 1.0
"""How often gateways tell their demand and get their lease, and how old an engine's report may be."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request to come. estimate_tokens: the gateway's estimate; patience_s: deadline after arrival."""

    at_s: float
    tenant: str = "a"
    prompt_tokens: int = 400
    completion_tokens: int = 100
    estimate_tokens: int = 0
    weight: float = 1.0
    priority: int = 1
    patience_s: float | None = None
    gateway: int = 0

    @property
    def used_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def first_token_s(self) -> float:
        return self.prompt_tokens / PREFILL_TOKENS_PER_S + DECODE_S_PER_TOKEN

    @property
    def service_s(self) -> float:
        return self.first_token_s + (self.completion_tokens - 1) * DECODE_S_PER_TOKEN


@dataclass(kw_only=True)
class Fate:
    """The course of a job. granted_s: when a gateway sent it; started_s: when the engine had a free slot for it."""

    job: Job
    rejected: Rejected | None = None
    expired_s: float | None = None
    predicted_wait_s: float | None = None
    granted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None

    @property
    def served(self) -> bool:
        return self.ended_s is not None

    @property
    def wait_s(self) -> float:
        assert self.started_s is not None
        return self.started_s - self.job.at_s

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.job.first_token_s


@dataclass
class Door:
    """One gateway process: its queue, its lease, and its requests at the engine."""

    scheduler: Scheduler
    leased: int
    reported_running: int = 0

    def slots(self, capacity: int) -> int:
        own = self.scheduler.num_running
        return min(self.leased, own + corrected(capacity, own, self.reported_running, 0))


@dataclass
class Twin:
    """One engine with ``capacity`` slots behind ``num_gateways`` gateways. ``at`` calls a function at a time."""

    capacity: int
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    num_gateways: int = 1
    most_running: int = 0
    now_s: float = 0.0
    fates: list[Fate] = field(default_factory=list)

    def __post_init__(self) -> None:
        leases = lease(self.capacity, [0] * self.num_gateways)
        self.doors = [Door(Scheduler(self.queue), slots) for slots in leases]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._running = 0
        self._engine_queue: list[Ticket] = []

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), call))

    def run(self, jobs: Iterable[Job]) -> list[Fate]:
        """Run until no events are left."""
        for job in jobs:
            self.at(job.at_s, lambda job=job: self.arrive(job))  # type: ignore[misc]
        self._tick()
        if self.num_gateways > 1:
            self._lease()
        while self._events:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        return self.fates

    def arrive(self, job: Job) -> Fate:
        door = self.doors[job.gateway]
        fate = Fate(job=job)
        self.fates.append(fate)
        deadline_s = None if job.patience_s is None else self.now_s + job.patience_s
        cost = job.estimate_tokens or job.used_tokens
        ticket = Ticket(job.tenant, job.weight, job.priority, cost, self.now_s, deadline_s, fate)
        busy = door.scheduler.num_running
        answer = door.scheduler.offer(ticket, now_s=self.now_s, slots=door.slots(self.capacity), busy=busy)
        match answer:
            case Granted():
                self._send(ticket)
            case Queued(predicted_wait_s=wait_s):
                fate.predicted_wait_s = wait_s
            case Rejected():
                fate.rejected = answer
        return fate

    def _send(self, ticket: Ticket) -> None:
        ticket.payload.granted_s = self.now_s
        self._engine_queue.append(ticket)
        self._start_in_engine()

    def _start_in_engine(self) -> None:
        while self._engine_queue and self._running < self.capacity:
            ticket = self._engine_queue.pop(0)
            self._running += 1
            ticket.payload.started_s = self.now_s
            self.at(self.now_s + ticket.payload.job.service_s, lambda ticket=ticket: self._end(ticket))  # type: ignore[misc]
        self.most_running = max(self.most_running, self._running + len(self._engine_queue))

    def _end(self, ticket: Ticket) -> None:
        fate: Fate = ticket.payload
        fate.ended_s = self.now_s
        self._running -= 1
        door = self.doors[fate.job.gateway]
        door.scheduler.finish(ticket, now_s=self.now_s, used_tokens=fate.job.used_tokens, served=True)
        self._start_in_engine()
        self._grant(door)

    def _grant(self, door: Door) -> None:
        while True:
            busy = door.scheduler.num_running
            ticket = door.scheduler.grant_next(now_s=self.now_s, slots=door.slots(self.capacity), busy=busy)
            if ticket is None:
                return
            self._send(ticket)

    def _tick(self) -> None:
        for door in self.doors:
            for ticket in door.scheduler.expire(self.now_s):
                ticket.payload.expired_s = self.now_s
            self._grant(door)
        if self._more_to_come():
            self.at(self.now_s + TICK_S, self._tick)

    def _lease(self) -> None:
        leases = lease_by_tenant(self.capacity, [door.scheduler.demands() for door in self.doors])
        for door, slots in zip(self.doors, leases, strict=True):
            door.leased = slots
            door.reported_running = self._running + len(self._engine_queue)
        for door in self.doors:
            self._grant(door)
        if self._more_to_come():
            self.at(self.now_s + LEASE_S, self._lease)

    def _more_to_come(self) -> bool:
        """Return whether events other than ticks are left."""
        waiting = any(door.scheduler.num_waiting for door in self.doors)
        return waiting or len(self._events) > (1 if self.num_gateways > 1 else 0)


def steady(
    tenant: str, *, per_s: float, seconds: float, seed: int, start_s: float = 0.0, num_gateways: int = 1
) -> list[Job]:
    """Make a Poisson stream of requests of many sizes (2.3 s on average)."""
    dice = random.Random(f"{tenant} {seed}")
    jobs, at_s = [], start_s
    while (at_s := at_s + dice.expovariate(per_s)) < start_s + seconds:
        jobs.append(Job(at_s=at_s, tenant=tenant, gateway=dice.randrange(num_gateways), **_sizes(dice)))
    return jobs


def flood(tenant: str, *, number: int, at_s: float, seed: int, num_gateways: int = 1) -> list[Job]:
    """Make requests of many sizes that arrive at the same time at all gateways."""
    dice = random.Random(f"{tenant} {seed}")
    return [
        Job(at_s=at_s + index * 1e-4, tenant=tenant, gateway=index % num_gateways, **_sizes(dice))
        for index in range(number)
    ]


def within(jobs: list[Job], most: int) -> list[Job]:
    """Drop the jobs that would exceed ``most`` at one time if each was served immediately."""
    ends: list[float] = []
    kept = []
    for job in jobs:
        ends = [end_s for end_s in ends if end_s > job.at_s]
        if len(ends) < most:
            kept.append(job)
            ends.append(job.at_s + job.service_s)
    return kept


def _sizes(dice: random.Random) -> dict[str, int]:
    used = {"prompt_tokens": dice.randint(100, 2000), "completion_tokens": dice.randint(10, 190)}
    return used | {"estimate_tokens": used["prompt_tokens"] + 512}


def p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
