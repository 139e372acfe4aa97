"""What one request may have to wait for: a slot, an engine, or its turn to be continued by another engine."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from longboat.gateway.exchange.life import GRANTED, TICK, TURN, Event, NoRoom
from longboat.gateway.http import error_responses
from longboat.routing.queue.fair_queue import GRANTED as GRANTED_SLOT
from longboat.routing.queue.fair_queue import Rejected, Ticket

if TYPE_CHECKING:
    from longboat.gateway.calls.model_request import Call
    from longboat.gateway.calls.state import GatewayState
    from longboat.gateway.exchange.reading import Host
    from longboat.gateway.upstreams.pool import Pool

__all__ = ("Waits",)


class Waits:  # size: three kinds of waiting (for a slot, an engine, a turn), each begun, left and ended
    """What the request waits for. Pools see it as ``pool.Waiting``, and not the request itself."""

    __slots__ = ("_call", "_host", "_parked_in", "_state", "_turn_in")

    def __init__(self, state: GatewayState, call: Call, host: Host) -> None:
        self._state = state
        self._call = call
        self._host: Host | None = host  # None once the request has ended
        self._parked_in: Pool | None = None
        self._turn_in: Pool | None = None  # the pool that limits how many answers are resumed at once

    @property
    def is_idle(self) -> bool:
        """Whether there is no engine that could answer."""
        lease = self._call.lease
        queued_in = lease.waits_in if lease is not None else None
        return self._parked_in is not None or (queued_in is not None and not queued_in.any_ready)

    def offer(self, now_s: float) -> Event:
        """Ask the model that is being tried for a slot. Return the event that follows at once; a tick means to wait."""
        call, tenant, lease = self._call, self._call.tenant, self._call.lease
        pool = self._state.table.pool(call.pool)
        assert lease is not None
        outside = call.outside = pool.outside if pool is not None else None
        if pool is not None and outside is not None:
            is_last = call.at_pool + 1 == len(call.pools)
            refusal = outside.refusal(call.path, pool.upstreams, now_s, is_last=is_last)
            if refusal is not None:
                return NoRoom(refusal)
        plan = call.plan
        weight, priority = (tenant.weight, tenant.priority) if plan is None else (plan.weight, plan.priority)
        ticket = Ticket(call.tenant_name, weight, priority, call.cost_tokens, now_s, call.deadline_s)
        verdict = pool.offer(ticket) if pool is not None else None
        if pool is not None and verdict is None:
            pool.ask_wake()
        if pool is None or verdict is None:
            return NoRoom(error_responses.no_ready_endpoint(call.pool))
        if verdict is GRANTED_SLOT:
            lease.take_slot(pool, ticket)
            return GRANTED
        if isinstance(verdict, Rejected):
            return NoRoom(error_responses.no_room(call.pool, verdict))
        ticket.payload = self
        lease.wait(pool, ticket)
        call.queued_s, call.granted_s = now_s, None
        return TICK

    def rejoin(self) -> Event:
        """Wait for a slot again, with the answer begun. Return the event that follows at once; a tick means to wait."""
        lease, pool = self._call.lease, self._state.table.pool(self._call.pool)
        if lease is None or lease.ticket is None or pool is None:
            return NoRoom(error_responses.no_ready_endpoint(self._call.pool))
        lease.ticket.payload = self
        lease.pause(pool, time.monotonic())
        return TICK

    def leave_pool(self) -> None:
        """Give back the slot, or the place in the queue."""
        lease, now_s = self._call.lease, time.monotonic()
        if lease is not None:
            if lease.waits_in is not None:
                self._call.granted_s = now_s
            lease.leave_pool(now_s)

    def park(self) -> None:
        """Wait for an engine of the model that is being tried."""
        pool = self._parked_in = self._state.table.pool(self._call.pool)
        if pool is not None:
            pool.parked[self] = None

    def unpark(self) -> None:
        """Stop waiting for an engine."""
        pool, self._parked_in = self._parked_in, None
        if pool is not None:
            pool.parked.pop(self, None)

    def ask_turn(self) -> Event:
        """Ask for a turn to continue the answer. Return the event that follows at once; a tick means to wait."""
        pool = self._turn_in = self._state.table.pool(self._call.pool)
        may = pool is not None and pool.ask_turn(self, self._state.live.policy.resume.capacity_ratio)
        return TURN if may else TICK

    def leave_turn(self) -> None:
        """Make way for the next answer that is to be resumed."""
        pool, self._turn_in = self._turn_in, None
        if pool is not None:
            pool.leave_turn(self, self._state.live.policy.resume.capacity_ratio)

    def end(self) -> None:
        """Stop every wait: the request is over."""
        self._host = None
        self.unpark()
        self.leave_turn()

    # what pools call

    def granted(self) -> None:
        if self._call.first_byte_s is None:
            self._call.granted_s = time.monotonic()
        lease = self._call.lease
        if lease is not None and lease.ticket is not None:
            lease.granted()
            lease.ticket.payload = None  # or neither would be freed without the collector
        self._tell(GRANTED)

    def found_no_room(self) -> None:
        lease = self._call.lease
        if lease is not None:
            lease.series.preemptions_denied += 1

    def timed_out(self) -> None:
        pool, call = None, self._call
        call.granted_s = time.monotonic()
        if call.lease is not None:
            pool = call.lease.waits_in
            call.lease.expired()
        queued_s = call.queued_s or 0.0
        if pool is not None and (not pool.any_ready or pool.away_s > queued_s):  # no engine could give it a slot then
            self._tell(NoRoom(error_responses.no_ready_endpoint(call.pool)))
        else:
            self._tell(NoRoom(error_responses.waited_too_long(call.pool, self._state.live.policy.queue.max_wait_s)))

    def woken(self) -> None:
        self._tell(TICK)

    def may_resume(self) -> None:
        if self._turn_in is not None:
            self._tell(TURN)

    def _tell(self, event: Event) -> None:
        host = self._host
        if host is not None:
            host.guard(functools.partial(host.step, event))
