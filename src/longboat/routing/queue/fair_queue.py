"""Decides who waits and who goes next when a model has no room: weighted fair queueing by tokens, inside classes."""

from __future__ import annotations

import heapq
import math

from longboat.core.policy import QueuePolicy
from longboat.routing.capacity.slots import Demand
from longboat.routing.queue.flows import Flow, Flows, Level, Tenant
from longboat.routing.queue.priority_order import first_by_class
from longboat.routing.queue.queue_entry import (
    ENDED,
    GRANTED,
    OUTSIDE,
    OVERDUE,
    RUNNING,
    WAITING,
    Granted,
    Queued,
    Rejected,
    RejectedReason,
    Ticket,
)
from longboat.routing.queue.throughput import Pace, Ratio
from longboat.routing.queue.wait_forecast import forecast_s

__all__ = ("GRANTED", "UNBOUNDED", "Granted", "Queued", "Rejected", "RejectedReason", "Scheduler", "Ticket")

UNBOUNDED = 1 << 30
"""What to pass as ``slots`` where replicas have no capacity of their own."""

_MAX_OVERFULL = 2
"""Tenants below their share of the places may wait beyond ``max_waiting``, up to so many times it."""


_MAX_RETRY_WAITS = 4
"""Nobody is told to come back later than after so many times the wait that was predicted for it."""


class Scheduler:
    """The queue of one model in one gateway process.

    slots: all requests that this process may have on ready replicas now; busy: how many it has.
    Call ``grant_next`` until None whenever a request finished or ``slots`` grew, and ``expire`` then ``grant_next``
    every 100 ms or so while ``num_waiting`` is not 0. ``queue`` may be replaced at any time.
    """

    __slots__ = ("_due", "_flows", "_overdue", "_pace", "_ratio", "_running", "_turn", "_waiting", "queue")

    def __init__(self, queue: QueuePolicy) -> None:
        self.queue = queue
        self._flows = Flows()
        self._pace = Pace()
        self._ratio = Ratio()
        self._due: list[tuple[float, int, Ticket]] = []
        self._overdue: dict[Ticket, None] = {}
        self._running = 0
        self._waiting = 0
        self._turn = 0

    @property
    def num_waiting(self) -> int:
        """Tickets that ``grant_next``, ``expire`` or ``cancel`` will end."""
        return self._waiting + len(self._overdue)

    @property
    def num_running(self) -> int:
        """Tickets that were granted and are not finished."""
        return self._running

    def waiting_of(self, tenant: str) -> int:
        known = self._flows.tenants.get(tenant)
        return known.waiting if known else 0

    def running_of(self, tenant: str) -> int:
        known = self._flows.tenants.get(tenant)
        return known.running if known else 0

    def service_of(self, tenant: str) -> float:
        """Tokens charged since the tenant became active: used by what ended, expected of what runs."""
        known = self._flows.tenants.get(tenant)
        return known.service_tokens if known else 0.0

    def demands(self) -> dict[str, Demand]:
        """What each tenant has running and waiting here, for ``lease_by_tenant``."""
        tenants = self._flows.tenants.values()
        return {
            t.name: Demand(weight=t.weight, running=t.running, waiting=t.waiting)
            for t in tenants
            if t.running or t.waiting
        }

    def offer(self, ticket: Ticket, *, now_s: float, slots: int, busy: int) -> Granted | Queued | Rejected:
        """A new request: runs at once, waits, or is refused."""
        if ticket.place is not OUTSIDE:
            raise ValueError(f"the ticket is already {ticket.place.name.lower()}: finish or cancel it first")
        if self._runs_at_once(ticket, now_s, slots, busy):
            return GRANTED
        self._flows.sweep(now_s)
        flow = self._flows.enter(ticket, now_s, self._ratio)
        free = slots - (busy if busy > self._running else self._running)
        in_time = ticket.deadline_s is None or ticket.deadline_s > now_s
        if in_time and free > 0 and self._goes_first(flow, now_s, slots, free):
            flow.virtual_time = flow.start()
            self._run(ticket, flow, now_s)
            return GRANTED
        return self._enqueue(ticket, flow, now_s, slots, busy)

    def _runs_at_once(self, ticket: Ticket, now_s: float, slots: int, busy: int) -> bool:
        """Run the ticket where none waits and there is room beyond what may be kept for other tenants."""
        flows = self._flows
        tenant = flows.tenants.get(ticket.tenant)
        if self._waiting or tenant is None or now_s >= flows.sweep_s or ticket.deadline_s is not None:
            return False
        flow = tenant.flows.get(ticket.priority)
        if flow is None or tenant.weight != ticket.weight or tenant.priority != ticket.priority:
            return False
        free = slots - (busy if busy > self._running else self._running)
        if free <= flows.most_headroom(tenant, slots, self.queue.headroom_ratio):
            return False
        tenant.last_s = now_s
        if flow.virtual_time < flow.level.virtual_time:
            flow.virtual_time = flow.level.virtual_time
        self._run(ticket, flow, now_s)
        return True

    def grant_next(self, *, now_s: float, slots: int, busy: int) -> Ticket | None:
        """The waiting ticket that goes next, now running; None when there is no room, or none may have it."""
        if not self._waiting:
            return None
        free = slots - max(busy, self._running)
        if free <= 0:
            return None
        self._flows.sweep(now_s)
        self._set_overdue_apart(now_s)
        flow = self._next_flow(now_s, slots, free)
        if flow is None:
            return None
        ticket = flow.head
        self._leave_queue(ticket, flow)
        self._run(ticket, flow, now_s)
        return ticket

    def finish(self, ticket: Ticket, *, now_s: float, used_tokens: int | None, served: bool) -> None:
        """A granted ticket ended: ``release`` and ``learn`` at once."""
        self.release(ticket, now_s=now_s)
        self.learn(ticket, used_tokens=used_tokens, served=served)

    def release(self, ticket: Ticket, *, now_s: float) -> None:
        """A granted ticket ended: its slot is free. Has no effect on a ticket that is not running."""
        flow = ticket.flow
        if flow is None or ticket.place is not RUNNING:
            return
        ticket.place = ENDED
        ticket.ended_s = now_s
        tenant = flow.tenant
        tenant.note(now_s)
        tenant.running -= 1
        tenant.last_s = now_s
        self._running -= 1

    def learn(self, ticket: Ticket, *, used_tokens: int | None, served: bool) -> None:
        """The tenant of a released ticket pays for what was used. May come a moment later; has an effect once.

        used_tokens: prompt and completion, None if unknown: the estimate stands if the ticket was served, else nothing
        is charged. served: an engine did the work, so its time teaches how long others wait.
        """
        flow = ticket.flow
        if flow is None or ticket.place is not ENDED:
            return
        ticket.place = OUTSIDE
        tenant = flow.tenant
        unknown_tokens = ticket.charged_tokens if served else 0.0
        used = unknown_tokens if used_tokens is None else float(used_tokens)
        change_tokens = used - ticket.charged_tokens
        tenant.service_tokens += change_tokens
        flow.virtual_time += change_tokens / tenant.weight
        if served and used > 0:
            self._pace.learn(used_tokens=used, busy_s=ticket.ended_s - ticket.granted_s)
            if used_tokens is not None:
                tenant.ratio.learn(estimated_tokens=ticket.cost_tokens, used_tokens=used)
                self._ratio.learn(estimated_tokens=ticket.cost_tokens, used_tokens=used)

    def cancel(self, ticket: Ticket) -> bool:
        """A waiting ticket left. False, and no effect, if it does not wait (a running one is to be finished)."""
        if ticket.place is OVERDUE:
            del self._overdue[ticket]
        elif ticket.place is WAITING and ticket.flow is not None:
            self._leave_queue(ticket, ticket.flow)
        else:
            return False
        ticket.place = OUTSIDE
        return True

    def expire(self, now_s: float) -> list[Ticket]:
        """Tickets that waited past their deadline or ``max_wait_s``, taken out. Each is returned once."""
        self._flows.sweep(now_s)
        self._set_overdue_apart(now_s)
        expired = list(self._overdue)
        self._overdue.clear()
        for ticket in expired:
            ticket.place = OUTSIDE
        return expired

    def predicted_wait_s(self, tenant: str, *, priority: int, now_s: float, slots: int, busy: int) -> float | None:
        """How long a request of ``tenant`` would wait if it came now; None while nothing was learned."""
        known = self._flows.tenants.get(tenant)
        flow = known.flows.get(priority) if known else None
        if flow is None:
            level = next((level for level in self._flows.levels if level.priority == priority), Level(priority))
            flow = Flow(known or Tenant(tenant, 1.0, priority, Ratio(self._ratio.value)), level)
        return self._wait_s(flow, now_s, slots, busy)

    # who goes first

    def _goes_first(self, flow: Flow, now_s: float, slots: int, free: int) -> bool:
        if free <= self._flows.headroom(slots, self.queue.headroom_ratio, now_s):
            floor = flow.level.floor() if self._waiting else None
            if not self._below_share(flow, slots, floor):
                return False
        return not self._waiting or self._next_flow(now_s, slots, free) is None

    def _below_share(self, flow: Flow, slots: int, floor: float | None) -> bool:
        """Fewer slots than its share; if it wants more, not ahead of who waits by more tokens than that share holds.

        Without the second part, who uses more tokens a second on each slot would get more than others. Who wanted less
        than its share lately is inside it, whatever it does with its slots.
        floor: virtual time of the least served flow of the class that waits, None if none does
        """
        share = self._flows.share(flow.tenant, slots)
        if flow.tenant.running >= share:
            return False
        if floor is None or not self._pace.known or flow.tenant.demand.mean < share:
            return True
        lead_tokens = (flow.virtual_time - floor) * flow.tenant.weight
        return lead_tokens <= share * self._pace.mean_tokens

    def _next_flow(self, now_s: float, slots: int, free: int) -> Flow | None:
        """The last free slots are for tenants below their share, unless all wait: then they are kept for nobody."""
        flows = self._flows
        if free > flows.headroom(slots, self.queue.headroom_ratio, now_s):
            return first_by_class([list(level.flows) for level in flows.levels], now_s, self.queue.age_s)
        floors = [level.floor() for level in flows.levels]
        below = [
            [flow for flow in level.flows if self._below_share(flow, slots, floor)]
            for level, floor in zip(flows.levels, floors, strict=True)
        ]
        chosen = first_by_class(below, now_s, self.queue.age_s)
        if chosen is None and all(tenant.waiting for tenant in flows.tenants.values()):
            return first_by_class([list(level.flows) for level in flows.levels], now_s, self.queue.age_s)
        return chosen

    # moves

    def _run(self, ticket: Ticket, flow: Flow, now_s: float) -> None:
        tenant, level = flow.tenant, flow.level
        tenant.note(now_s)
        charged_tokens = ticket.cost_tokens * tenant.ratio.value
        self._turn += 1
        level.turn = self._turn
        level.virtual_time = flow.virtual_time
        flow.virtual_time += charged_tokens / tenant.weight
        tenant.service_tokens += charged_tokens
        tenant.running += 1
        self._running += 1
        ticket.place = RUNNING
        ticket.flow = flow
        ticket.charged_tokens = charged_tokens
        ticket.granted_s = now_s

    def _enqueue(self, ticket: Ticket, flow: Flow, now_s: float, slots: int, busy: int) -> Queued | Rejected:
        wait_s = self._wait_s(flow, now_s, slots, busy)
        if self._is_full(flow.tenant):
            return self._reject(RejectedReason.QUEUE_FULL, flow, now_s, wait_s, 0.0)
        expires_s, reason = self._latest_start(ticket)
        late_s = now_s + (wait_s or 0.0) - expires_s
        if late_s >= 0:
            return self._reject(reason, flow, now_s, wait_s, late_s)
        self._turn += 1
        flow.tenant.note(now_s)
        ticket.place = WAITING
        ticket.flow = flow
        ticket.expires_s = expires_s
        flow.push(ticket)
        self._waiting += 1
        if len(self._due) > 2 * self._waiting + 64:
            self._due = [entry for entry in self._due if entry[2].place is WAITING]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (expires_s, self._turn, ticket))
        return Queued(wait_s)

    def _leave_queue(self, ticket: Ticket, flow: Flow) -> None:
        flow.take_out(ticket)
        self._waiting -= 1

    def _set_overdue_apart(self, now_s: float) -> None:
        due = self._due
        while due and due[0][0] <= now_s:
            expires_s, _, ticket = heapq.heappop(due)
            if ticket.place is WAITING and ticket.flow is not None and ticket.expires_s == expires_s:
                self._leave_queue(ticket, ticket.flow)
                ticket.place = OVERDUE
                self._overdue[ticket] = None

    # refusals

    def _latest_start(self, ticket: Ticket) -> tuple[float, RejectedReason]:
        patience_s = ticket.arrived_s + self.queue.max_wait_s
        if ticket.deadline_s is not None and ticket.deadline_s < patience_s:
            return ticket.deadline_s, RejectedReason.DEADLINE
        return patience_s, RejectedReason.WAIT_TOO_LONG

    def _is_full(self, tenant: Tenant) -> bool:
        places = self.queue.max_waiting
        if self._waiting < places:
            return False
        return self._waiting >= _MAX_OVERFULL * places or tenant.waiting + 1 > self._flows.share(tenant, places)

    def _wait_s(self, flow: Flow, now_s: float, slots: int, busy: int) -> float | None:
        if not self._pace.known or slots <= 0:
            return None
        busy = max(busy, self._running)
        if not self._waiting and slots > busy and self._goes_first(flow, now_s, slots, slots - busy):
            return 0.0
        headroom = self._flows.headroom(slots, self.queue.headroom_ratio, now_s)
        return forecast_s(flow, self._flows, self._pace, slots, busy, headroom)

    def _reject(
        self, reason: RejectedReason, flow: Flow, now_s: float, wait_s: float | None, too_late_s: float
    ) -> Rejected:
        retry_s = 1.0 if wait_s is None else self._retry_s(flow, now_s, wait_s, min(too_late_s, wait_s))
        detail = _DETAILS[reason].format(waiting=self._waiting, wait_s=wait_s or 0.0)
        return Rejected(reason, max(1, math.ceil(retry_s)), detail)

    def _retry_s(self, flow: Flow, now_s: float, wait_s: float, room_after_s: float) -> float:
        """Each refused one gets a later time, at the pace of the tenant's queue, so that they come back one by one.

        The time is bounded, for who does not heed it and asks again at once moves it on.
        """
        step_s = wait_s / (flow.tenant.waiting + 1)
        flow.promised_s = min(max(now_s + room_after_s, flow.promised_s) + step_s, now_s + _MAX_RETRY_WAITS * wait_s)
        return flow.promised_s - now_s


_DETAILS = {
    RejectedReason.QUEUE_FULL: "{waiting} requests wait for this model already.",
    RejectedReason.WAIT_TOO_LONG: "The wait for this model would be about {wait_s:.0f} s: too long.",
    RejectedReason.DEADLINE: "The request could not start before its deadline; the wait would be about {wait_s:.0f} s.",
}
