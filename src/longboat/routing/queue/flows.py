"""Keeps the active tenants, what each was served, and which goes next: tenants, their flows, priority classes."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, Final

from longboat.routing.queue.queue_entry import OUTSIDE
from longboat.routing.queue.recent_demand import RecentDemand, slots_wanted
from longboat.routing.queue.throughput import EstimateBias

__all__ = ("ACTIVE_S", "Flow", "Flows", "Level", "Tenant", "Ticket")

ACTIVE_S: Final = 30.0
"""A tenant counts in the division of shares until it had nothing waiting or running for this long."""

_SWEEP_S: Final = 1.0


class Ticket:  # size: a plain record without behaviour
    """One request of one model. Times are on the clock that is passed as ``now_s``."""

    __slots__ = (
        "arrived_s", "charged_tokens", "cost_tokens", "deadline_s", "denied", "expires_s", "flow", "granted_s",
        "num_pauses", "payload", "place", "priority", "ran_s", "since_s", "tenant", "unsettled_tokens", "waited_s",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        tenant: str,
        weight: float,
        priority: int,
        cost_tokens: int,
        arrived_s: float,
        deadline_s: float | None = None,
        payload: Any = None,
    ) -> None:
        self.tenant = tenant
        self.weight = weight  # above 0
        self.priority = priority
        self.cost_tokens = cost_tokens  # estimate of prompt and completion
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.payload = payload  # the caller's; the attributes below belong to the scheduler, and others only read them
        self.place = OUTSIDE
        self.flow: Flow | None = None
        self.charged_tokens = 0.0
        self.unsettled_tokens = 0.0  # of these, what a mean request would not use
        self.granted_s = 0.0
        self.expires_s = 0.0
        self.ran_s = 0.0  # time with a slot, the present one not included
        self.waited_s = 0.0  # time without a slot, the present wait not included
        self.since_s = arrived_s  # the wait counts from here: pauses add to it, time with a slot does not
        self.num_pauses = 0
        self.denied = False  # it was counted as one for which no stream could be paused


class Tenant:
    """A tenant with requests now or a moment ago, and what the scheduler knows of it."""

    __slots__ = (
        "demand", "flows", "kept_mean", "kept_variance", "last_s", "name", "priority", "ratio", "running",
        "waiting", "weight",
    )  # fmt: skip

    def __init__(self, name: str, weight: float, priority: int, ratio: EstimateBias, now_s: float = 0.0) -> None:
        self.name = name
        self.weight = weight
        self.priority = priority  # best class that it asked for while active
        self.ratio = ratio
        self.running = 0
        self.waiting = 0
        self.last_s = 0.0
        self.demand = RecentDemand(now_s)  # slots that it wanted recently
        self.kept_mean = 0.0  # mean of ``demand`` at the last ``Flows.sweep``
        self.kept_variance = 0.0  # variance of ``demand`` at the last ``Flows.sweep``
        self.flows: dict[int, Flow] = {}

    def note(self, now_s: float) -> None:
        """Record the demand so far. Call before ``running`` or ``waiting`` changes."""
        self.demand.note(self.running + self.waiting, now_s)


class Level:
    """A priority class."""

    __slots__ = ("flows", "priority", "running", "turn", "virtual_time")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.flows: dict[Flow, None] = {}  # flows with waiting tickets
        self.virtual_time = 0.0  # ``Flow.settled`` of the last granted ticket's flow when it began
        self.turn = 0  # number of the last grant, so that equals take turns
        self.running = 0

    def floor(self) -> float | None:
        """Return the virtual time of the least served waiting flow; None if no flow waits."""
        return min([flow.virtual_time for flow in self.flows]) if self.flows else None


class Flow:
    """A tenant's tickets of one class, first come first served."""

    __slots__ = ("level", "promised_s", "tenant", "tickets", "unsettled_tokens", "virtual_time", "waiting_tokens")

    def __init__(self, tenant: Tenant, level: Level) -> None:
        self.tenant = tenant
        self.level = level
        self.tickets: OrderedDict[Ticket, None] = OrderedDict()
        self.waiting_tokens = 0
        self.virtual_time = 0.0  # tokens served, divided by weight
        self.unsettled_tokens = 0.0  # of these, what estimates say beyond mean requests, until their use is known
        self.promised_s = 0.0  # latest time at which a refused request was asked to come back

    @property
    def head(self) -> Ticket:
        return next(iter(self.tickets))

    @property
    def work_tokens(self) -> float:
        """Tokens that the waiting tickets will use, as far as the tenant's past tells."""
        return self.waiting_tokens * self.tenant.ratio.value

    @property
    def settled(self) -> float:
        """Return the virtual time as if each ticket whose use is not known yet used a request's mean at most."""
        return self.virtual_time - self.unsettled_tokens / self.tenant.weight

    def start(self) -> float:
        """Return the virtual time from which a new ticket is served: a tenant with an empty queue saved nothing.

        High estimates of other tenants do not count: once their true use is known, this tenant would be behind by the
        difference.
        """
        if self.tickets:
            return self.virtual_time
        settled = [flow.settled for flow in self.level.flows]
        return max(self.virtual_time, min(settled) if settled else self.level.virtual_time)

    def push(self, ticket: Ticket) -> None:
        self.virtual_time = self.start()
        self.tickets[ticket] = None
        self.level.flows[self] = None
        self.waiting_tokens += ticket.cost_tokens
        self.tenant.waiting += 1

    def push_paused(self, ticket: Ticket) -> None:
        """Enter a ticket that had a slot before those that had none; among its like, the earlier goes first."""
        earlier = [t for t in self.tickets if t.num_pauses and t.arrived_s <= ticket.arrived_s]
        self.push(ticket)
        for first in (ticket, *reversed(earlier)):
            self.tickets.move_to_end(first, last=False)

    def take_out(self, ticket: Ticket) -> None:
        del self.tickets[ticket]
        self.waiting_tokens -= ticket.cost_tokens
        self.tenant.waiting -= 1
        if not self.tickets:
            del self.level.flows[self]


class Flows:
    """All active tenants, and the priority classes."""

    __slots__ = ("_kept_mean", "_kept_variance", "_weights", "levels", "sweep_s", "tenants")

    def __init__(self) -> None:
        self._kept_mean = 0.0
        self._kept_variance = 0.0
        self.tenants: dict[str, Tenant] = {}
        self.levels: list[Level] = []
        self._weights: dict[int, float] = {}
        self.sweep_s = 0.0  # time of the next ``sweep`` that does something

    def enter(self, ticket: Ticket, now_s: float, typical: EstimateBias) -> Flow:
        """Return the flow of a new ticket; its tenant is active from now on."""
        tenant = self.tenants.get(ticket.tenant)
        if tenant is None:
            tenant = Tenant(ticket.tenant, ticket.weight, ticket.priority, EstimateBias(typical.value), now_s)
            self.tenants[ticket.tenant] = tenant
            self._weigh()
        elif tenant.weight != ticket.weight or ticket.priority < tenant.priority:
            tenant.weight = ticket.weight
            tenant.priority = min(tenant.priority, ticket.priority)
            self._weigh()
        tenant.last_s = now_s
        return tenant.flows.get(ticket.priority) or self._new_flow(tenant, ticket.priority)

    def sweep(self, now_s: float) -> None:
        """Forget tenants that were idle for long. Works once a second, and returns at once in between."""
        if now_s < self.sweep_s:
            return
        self.sweep_s = now_s + _SWEEP_S
        limit_s = now_s - ACTIVE_S
        idle = [t for t in self.tenants.values() if t.last_s < limit_s and not t.running and not t.waiting]
        for tenant in idle:
            del self.tenants[tenant.name]
        if idle:
            self._weigh()
        self._look_at_demand(now_s)

    def share(self, tenant: Tenant, of: float) -> float:
        """Return the tenant's part of ``of`` by weight, among active tenants of its class and of better classes."""
        weights = self._weights.get(tenant.priority)
        return of if weights is None else of * tenant.weight / weights

    def headroom(self, slots: int, ratio: float, now_s: float) -> int:
        """Return the slots that only tenants below their share may take.

        These are a part of all slots, or the slots that such tenants will probably want soon if that is more: what they
        wanted recently and a margin, within their shares, less what they have.
        """
        if ratio <= 0 or slots < 2 or len(self.tenants) < 2:
            return 0
        mean = variance = shares = 0.0
        running = 0
        for tenant in self.tenants.values():
            share = self.share(tenant, slots)
            if tenant.running >= share:
                continue
            tenant.note(now_s)
            mean += min(tenant.demand.mean, share)
            variance += tenant.demand.variance
            shares += share
            running += tenant.running
        expected = min(slots_wanted(mean, variance), shares) - running
        return max(math.ceil(slots * min(ratio, 1.0)), math.floor(expected))

    def most_headroom(self, tenant: Tenant, slots: int, ratio: float) -> float:
        """Return an upper bound of the ``headroom`` that bars ``tenant``, at little cost.

        It counts what ``sweep`` last saw of the other tenants.
        """
        if ratio <= 0 or len(self.tenants) < 2:
            return 0.0
        variance = self._kept_variance - tenant.kept_variance
        wanted = slots_wanted(self._kept_mean - tenant.kept_mean, variance if variance > 0.0 else 0.0)
        return max(slots * ratio + 1.0, wanted)

    def _look_at_demand(self, now_s: float) -> None:
        self._kept_mean = self._kept_variance = 0.0
        for tenant in self.tenants.values():
            tenant.note(now_s)
            self._kept_mean += tenant.demand.mean
            self._kept_variance += tenant.demand.variance
            tenant.kept_mean, tenant.kept_variance = tenant.demand.mean, tenant.demand.variance

    def _new_flow(self, tenant: Tenant, priority: int) -> Flow:
        level = next((level for level in self.levels if level.priority == priority), None)
        if level is None:
            level = Level(priority)
            self.levels.append(level)
            self.levels.sort(key=lambda level: level.priority)
        flow = tenant.flows[priority] = Flow(tenant, level)
        return flow

    def _weigh(self) -> None:
        by_priority: dict[int, float] = {}
        for tenant in self.tenants.values():
            by_priority[tenant.priority] = by_priority.get(tenant.priority, 0.0) + tenant.weight
        total = 0.0
        self._weights = {priority: (total := total + by_priority[priority]) for priority in sorted(by_priority)}
