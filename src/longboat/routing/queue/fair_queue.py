"""Decides which request waits and which goes next when no slot is free: weighted fair queueing by tokens."""

from __future__ import annotations

import math
from typing import Final

from longboat.core.policy import QueuePolicy
from longboat.routing.capacity.slots import Demand
from longboat.routing.queue.backlog import Backlog
from longboat.routing.queue.flows import Flow, Flows, Tenant, Ticket
from longboat.routing.queue.preemption import num_takable
from longboat.routing.queue.priority_order import is_below_share, next_flow
from longboat.routing.queue.queue_entry import (
    ENDED,
    GRANTED,
    OUTSIDE,
    RUNNING,
    Granted,
    Queued,
    Rejected,
    RejectedReason,
)
from longboat.routing.queue.throughput import EstimateBias, Throughput
from longboat.routing.queue.wait_forecast import forecast_s

__all__ = ("GRANTED", "UNBOUNDED", "Granted", "Queued", "Rejected", "RejectedReason", "Scheduler", "Ticket")

UNBOUNDED: Final = 1 << 30
"""Value for ``slots`` where replicas have no capacity of their own."""

_MAX_OVERFULL: Final = 2
"""Tenants below their share of the places may wait beyond ``max_waiting``, up to this multiple of it."""

_MAX_RETRY_WAITS: Final = 4
"""``Retry-After`` is at most this multiple of the wait that was predicted for the request."""


class Scheduler:  # size: a ticket changes its state (offered, waiting, running, ended) here only
    """The queue of one model in one gateway process.

    slots: all requests that this process may have on ready replicas now; busy: the number that it has there.
    Call ``grant_next`` until it returns None whenever a request finished or ``slots`` grew. While ``num_waiting`` is
    not 0, call ``expire`` and then ``grant_next`` about every 100 ms. ``queue`` may be replaced at any time.
    """

    __slots__ = ("_backlog", "_grants", "_pace", "_ratio", "_running", "can_pause", "flows", "queue")

    def __init__(self, queue: QueuePolicy) -> None:
        self.queue = queue
        self.flows = Flows()  # read only
        self.can_pause = False  # engines can continue paused streams; set by the caller
        self._backlog = Backlog()
        self._pace = Throughput()
        self._ratio = EstimateBias()
        self._running = 0
        self._grants = 0

    @property
    def num_waiting(self) -> int:
        """Number of tickets that ``grant_next``, ``expire`` or ``cancel`` will end."""
        return self._backlog.num_waiting

    @property
    def num_running(self) -> int:
        """Number of tickets that were granted and are not finished."""
        return self._running

    @property
    def num_paused(self) -> int:
        """Number of waiting tickets that had a slot before."""
        return self._backlog.num_paused

    def demands(self) -> dict[str, Demand]:
        """Return what each tenant has running and waiting here, for ``lease_by_tenant``."""
        tenants = self.flows.tenants.values()
        return {
            t.name: Demand(weight=t.weight, running=t.running, waiting=t.waiting)
            for t in tenants
            if t.running or t.waiting
        }

    def offer(self, ticket: Ticket, *, now_s: float, slots: int, busy: int) -> Granted | Queued | Rejected:
        """Offer a new request: it runs at once, waits, or is refused."""
        if ticket.place is not OUTSIDE:
            raise ValueError(f"the ticket is already {ticket.place.name.lower()}: finish or cancel it first")
        if self._runs_at_once(ticket, now_s, slots, busy):
            return GRANTED
        self.flows.sweep(now_s)
        flow = self.flows.enter(ticket, now_s, self._ratio)
        free = slots - (busy if busy > self._running else self._running)
        in_time = ticket.deadline_s is None or ticket.deadline_s > now_s
        if in_time and free > 0 and self._goes_first(flow, now_s, slots, free):
            flow.virtual_time = flow.start()
            self._run(ticket, flow, now_s)
            return GRANTED
        return self._enqueue(ticket, flow, now_s, slots, busy)

    def _runs_at_once(self, ticket: Ticket, now_s: float, slots: int, busy: int) -> bool:
        """Run the ticket where none waits and there is room beyond what may be kept for other tenants."""
        flows = self.flows
        tenant = flows.tenants.get(ticket.tenant)
        if self._backlog.queued or tenant is None or now_s >= flows.sweep_s or ticket.deadline_s is not None:
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
        """Start the waiting ticket that goes next and return it; None where no slot is free for a waiting tenant."""
        if not self._backlog.queued:
            return None
        free = slots - max(busy, self._running)
        if free <= 0:
            return None
        self.flows.sweep(now_s)
        self._backlog.set_overdue_apart(now_s)
        flow = next_flow(self.flows, self._pace, self.queue, now_s, slots, free)
        if flow is None:
            return None
        ticket = flow.head
        self._backlog.take_out(ticket, flow)
        self._run(ticket, flow, now_s)
        return ticket

    def heir(self, *, now_s: float, slots: int, busy: int) -> Ticket | None:
        """Return the waiting ticket for which a stream of a worse class may be paused; None where there is none.

        It goes next in its own class: age lifts no class here. Then ``pause`` such a stream, and call ``hand_over``.
        """
        rules = self.queue.preemption
        if not rules.enabled or not self._backlog.queued or self._backlog.num_paused >= slots:
            return None
        if slots > max(busy, self._running):
            return None
        self._backlog.set_overdue_apart(now_s)
        flow = next_flow(self.flows, self._pace, self.queue, now_s, slots, 1, by_age=False)
        if flow is None or now_s - flow.head.since_s < rules.wait_s:
            return None
        priority = flow.level.priority
        is_taken = any([level.running for level in self.flows.levels if level.priority > priority])
        return flow.head if is_taken else None

    def pause(self, ticket: Ticket, *, now_s: float) -> None:
        """Take the slot from a granted ticket, and let it wait before the others of its tenant and class.

        It does not expire. What it was charged stays charged, and is not charged again with its next slot.
        """
        self.release(ticket, now_s=now_s)
        if ticket.place is not ENDED:
            raise ValueError(f"a ticket that is {ticket.place.name.lower()} cannot be paused")
        ticket.num_pauses += 1
        ticket.since_s = now_s - ticket.waited_s
        flow = self.flows.enter(ticket, now_s, self._ratio)
        flow.tenant.note(now_s)
        self._backlog.push_paused(ticket, flow)

    def hand_over(self, ticket: Ticket, *, now_s: float) -> None:
        """Give a waiting ticket the slot that a paused one had."""
        flow = ticket.flow
        assert flow is not None
        self._backlog.take_out(ticket, flow)
        self._run(ticket, flow, now_s)

    def finish(self, ticket: Ticket, *, now_s: float, used_tokens: int | None, served: bool) -> None:
        """End a granted ticket: ``release`` and ``learn`` together."""
        self.release(ticket, now_s=now_s)
        self.learn(ticket, used_tokens=used_tokens, served=served)

    def release(self, ticket: Ticket, *, now_s: float) -> None:
        """Free the slot of a granted ticket that ended. Has no effect on a ticket that is not running."""
        flow = ticket.flow
        if flow is None or ticket.place is not RUNNING:
            return
        ticket.place = ENDED
        ticket.ran_s += now_s - ticket.granted_s
        tenant = flow.tenant
        tenant.note(now_s)
        tenant.running -= 1
        flow.level.running -= 1
        tenant.last_s = now_s
        self._running -= 1

    def learn(self, ticket: Ticket, *, used_tokens: int | None, served: bool) -> None:
        """Charge the tenant of a released ticket for the tokens used. Has an effect once, maybe after a moment.

        used_tokens: prompt and completion. None if unknown: the estimate stands if the ticket was served, else nothing
        is charged. served: an engine did the work, so its time improves the predictions of waits.
        """
        flow = ticket.flow
        if flow is None or ticket.place is not ENDED:
            return
        ticket.place = OUTSIDE
        tenant = flow.tenant
        unknown_tokens = ticket.charged_tokens if served else 0.0
        used = unknown_tokens if used_tokens is None else float(used_tokens)
        change_tokens = used - ticket.charged_tokens
        flow.virtual_time += change_tokens / tenant.weight
        flow.unsettled_tokens -= ticket.unsettled_tokens
        if served and used > 0:
            self._pace.learn(used_tokens=used, busy_s=ticket.ran_s)
            if used_tokens is not None:
                tenant.ratio.learn(estimated_tokens=ticket.cost_tokens, used_tokens=used)
                self._ratio.learn(estimated_tokens=ticket.cost_tokens, used_tokens=used)
        ticket.num_pauses, ticket.ran_s = 0, 0.0

    def cancel(self, ticket: Ticket) -> bool:
        """Remove a waiting ticket. Returns False, without effect, if the ticket does not wait.

        For one that had a slot, ``learn`` is still to be called.
        """
        if not self._backlog.cancel(ticket):
            return False
        if ticket.num_pauses:
            ticket.place = ENDED
        return True

    def expire(self, now_s: float) -> list[Ticket]:
        """Remove and return the tickets that waited past their deadline or ``max_wait_s``. Returns each once."""
        self.flows.sweep(now_s)
        return self._backlog.expire(now_s)

    def _goes_first(self, flow: Flow, now_s: float, slots: int, free: int) -> bool:
        queued = self._backlog.queued
        if free <= self.flows.headroom(slots, self.queue.headroom_ratio, now_s):
            floor = flow.level.floor() if queued else None
            if not is_below_share(flow, self.flows, self._pace, slots, floor):
                return False
        return not queued or next_flow(self.flows, self._pace, self.queue, now_s, slots, free) is None

    def _run(self, ticket: Ticket, flow: Flow, now_s: float) -> None:
        tenant, level = flow.tenant, flow.level
        tenant.note(now_s)
        if not ticket.num_pauses:
            ticket.charged_tokens = charged = ticket.cost_tokens * tenant.ratio.value
            ticket.unsettled_tokens = max(0.0, charged - self._pace.mean_tokens) if self._pace.known else charged
        self._grants += 1
        level.turn = self._grants
        level.virtual_time = flow.settled
        if not ticket.num_pauses:
            flow.virtual_time += ticket.charged_tokens / tenant.weight
            flow.unsettled_tokens += ticket.unsettled_tokens
        tenant.running += 1
        level.running += 1
        self._running += 1
        ticket.place = RUNNING
        ticket.flow = flow
        ticket.granted_s = now_s
        ticket.waited_s = now_s - ticket.since_s

    def _enqueue(self, ticket: Ticket, flow: Flow, now_s: float, slots: int, busy: int) -> Queued | Rejected:
        wait_s = self._wait_s(flow, now_s, slots, busy)
        if self._is_full(flow.tenant):
            return self._reject(RejectedReason.QUEUE_FULL, flow, now_s, wait_s, 0.0)
        expires_s, reason = self._latest_start(ticket)
        late_s = now_s + (wait_s or 0.0) - expires_s
        if late_s >= 0 and not self._may_take(flow):
            return self._reject(reason, flow, now_s, wait_s, late_s)
        flow.tenant.note(now_s)
        self._backlog.push(ticket, flow, expires_s)
        return Queued(wait_s)

    def _may_take(self, flow: Flow) -> bool:
        """Return whether enough streams of worse classes run that one may be paused for the flow's next ticket."""
        is_possible = self.can_pause and self.queue.preemption.enabled
        return is_possible and num_takable(self.flows, flow.level.priority) > 0

    def _latest_start(self, ticket: Ticket) -> tuple[float, RejectedReason]:
        patience_s = ticket.arrived_s + self.queue.max_wait_s
        if ticket.deadline_s is not None and ticket.deadline_s < patience_s:
            return ticket.deadline_s, RejectedReason.DEADLINE
        return patience_s, RejectedReason.WAIT_TOO_LONG

    def _is_full(self, tenant: Tenant) -> bool:
        places = self.queue.max_waiting
        if self._backlog.queued < places:
            return False
        return self._backlog.queued >= _MAX_OVERFULL * places or tenant.waiting + 1 > self.flows.share(tenant, places)

    def _wait_s(self, flow: Flow, now_s: float, slots: int, busy: int) -> float | None:
        if not self._pace.known or slots <= 0:
            return None
        busy = max(busy, self._running)
        if not self._backlog.queued and slots > busy and self._goes_first(flow, now_s, slots, slots - busy):
            return 0.0
        headroom = self.flows.headroom(slots, self.queue.headroom_ratio, now_s)
        return forecast_s(flow, self.flows, self._pace, slots, busy, headroom)

    def _reject(
        self, reason: RejectedReason, flow: Flow, now_s: float, wait_s: float | None, too_late_s: float
    ) -> Rejected:
        retry_s = 1.0 if wait_s is None else _retry_s(flow, now_s, wait_s, min(too_late_s, wait_s))
        detail = _DETAILS[reason].format(waiting=self._backlog.queued, wait_s=wait_s or 0.0)
        return Rejected(reason, max(1, math.ceil(retry_s)), detail)


def _retry_s(flow: Flow, now_s: float, wait_s: float, room_after_s: float) -> float:
    """Give each refused request of a tenant a later time, at the pace of its queue, so that they come back one by one.

    The time is bounded because a client that ignores it and asks again at once moves it further.
    """
    step_s = wait_s / (flow.tenant.waiting + 1)
    flow.promised_s = min(max(now_s + room_after_s, flow.promised_s) + step_s, now_s + _MAX_RETRY_WAITS * wait_s)
    return flow.promised_s - now_s


_DETAILS = {
    RejectedReason.QUEUE_FULL: "{waiting} requests are already waiting for this model.",
    RejectedReason.WAIT_TOO_LONG: "The wait for this model would be about {wait_s:.0f} s, which is too long.",
    RejectedReason.DEADLINE: "The request could not start before its deadline; the wait would be about {wait_s:.0f} s.",
}
