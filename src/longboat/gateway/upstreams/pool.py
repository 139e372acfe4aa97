"""One model's endpoints in this process, and the requests that wait for room on them."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Protocol

from longboat.core.policy import QueuePolicy, RoutingRules
from longboat.core.states import Asleep, ResumeLevel
from longboat.gateway.external.outside import Outside
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.health.outliers import Outliers
from longboat.routing.health.resume_budget import ResumeBudget
from longboat.routing.policies.registry import policy_of
from longboat.routing.prefixes.index import PrefixIndex
from longboat.routing.queue.fair_queue import UNBOUNDED, Granted, Queued, Rejected, Scheduler, Ticket
from longboat.routing.queue.preemption import pausable
from longboat.routing.queue.queue_entry import RUNNING
from longboat.routing.router import Router

__all__ = ("Pool", "Waiting", "Wakes")

_JUDGE_S = 1.0
_PREEMPT_AGAIN_S = 0.05  # after no stream could be paused
_RECHECK_S = 0.01  # while requests wait: another process of this node may have given a slot back


class Waiting(Protocol):
    """A request that waits for a slot, for an engine, or for its turn to resume."""

    def granted(self) -> None:
        """Start: the request has a slot now."""

    def found_no_room(self) -> None:
        """Count that no stream of a worse class could be paused for the request."""

    def timed_out(self) -> None:
        """Give up: the request waited too long for a slot, and its ticket is gone."""

    def woken(self) -> None:
        """Look for an engine again: there may be one now."""

    def may_resume(self) -> None:
        """Resume at another engine now."""


class Wakes:
    """The models that requests asked for since the last call of ``wait``."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._event = asyncio.Event()
        self._num_calls = 0

    def ask(self, model: str) -> None:
        """Note that a request asks for a model that sleeps."""
        self._asked.add(model)
        self._event.set()

    async def wait(self, timeout_s: float) -> list[str]:
        """Return the models, as soon as there is one; none after ``timeout_s``.

        The newest call gets them: the callers of earlier ones may have died.
        """
        self._num_calls += 1
        number = self._num_calls
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return []
        if number != self._num_calls:
            return []
        self._event.clear()
        asked, self._asked = self._asked, set()
        return sorted(asked)


class Pool:  # size: three kinds of waiting (for a slot, an engine, a turn) share the model's endpoints
    """A model's ready endpoints, and the slots on them: given at once where there is room, else in fair order."""

    __slots__ = (
        "_judged_s",
        "_preempt_s",
        "_resumes",
        "_soon",
        "_timer",
        "_wakes",
        "asleep",
        "away_s",
        "model",
        "outliers",
        "outside",
        "parked",
        "ready_s",
        "router",
        "scheduler",
        "upstreams",
    )

    def __init__(self, model: str, queue: QueuePolicy, routing: RoutingRules, index: PrefixIndex, wakes: Wakes) -> None:
        self.model = model
        self.asleep: Asleep | None = None  # how the model sleeps; None: it is awake
        self._wakes = wakes
        self.router = Router(policy_of(routing.policy), index)
        self.scheduler = Scheduler(queue)
        self.upstreams: tuple[Upstream, ...] = ()
        self.outside: Outside | None = None  # what is known of an external model; None: a model of the fleet
        # Time (monotonic) at which an endpoint was last ready; a process that begins now knows no earlier one.
        self.ready_s = time.monotonic()
        self.away_s = 0.0  # when no endpoint was ready last
        self.parked: dict[Waiting, None] = {}  # requests that wait for an engine
        self.outliers = Outliers()  # engines that are too slow
        self._judged_s = 0.0
        self._preempt_s = 0.0  # no stream is paused before
        self._resumes: ResumeBudget[Waiting] = ResumeBudget()
        self._soon = False  # ``_pump`` is about to run
        self._timer: asyncio.TimerHandle | None = None

    @property
    def slots(self) -> int:
        """Slots that this process may use now; 0 when no endpoint is ready."""
        total = 0
        for upstream in self.upstreams:
            if upstream.ready:
                slots = upstream.slots
                if slots is None:
                    return UNBOUNDED
                total += slots
        return total

    @property
    def num_waiting(self) -> int:
        return self.scheduler.num_waiting

    @property
    def in_use(self) -> int:
        """Slots that this process has given out."""
        return self.scheduler.num_running

    def offer(self, ticket: Ticket) -> Granted | Queued | Rejected | None:
        """Ask for a slot; None where the model has no endpoint with any.

        A grant is carried out by the caller; one that comes later calls ``payload.granted()``.
        """
        slots = self.slots
        if not slots:
            return None
        verdict = self.scheduler.offer(ticket, now_s=ticket.arrived_s, slots=slots, busy=0)
        if isinstance(verdict, Queued):
            self._look_again()
        return verdict

    def ask_wake(self) -> None:
        """Have the controller start a replica, where the model sleeps and may be woken."""
        if self.asleep is not None and not self.asleep.paused:
            self._wakes.ask(self.model)

    def release(self, ticket: Ticket, now_s: float) -> None:
        """Give a slot back. ``scheduler.learn`` takes what it was used for."""
        self.scheduler.release(ticket, now_s=now_s)
        if self.scheduler.num_waiting:
            self.pump_soon()

    def pause(self, ticket: Ticket, now_s: float) -> None:
        """Let a request wait again that had a slot. Another one may have it at once."""
        self.scheduler.pause(ticket, now_s=now_s)
        self.pump_soon()

    def cancel(self, ticket: Ticket) -> None:
        """Remove a ticket that waits."""
        self.scheduler.cancel(ticket)

    def pump_soon(self) -> None:
        """Grant free slots to waiting requests in the next round of the event loop."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    @property
    def any_ready(self) -> bool:
        return any(upstream.ready for upstream in self.upstreams)

    def ask_turn(self, who: Waiting, capacity_ratio: float) -> bool:
        """Return whether another engine may continue this response now; else ``who.may_resume()`` is called later.

        capacity_ratio: part of the slots that may resume at once; always at least one slot
        """
        return self._resumes.ask(who, allowed=self._allowed(capacity_ratio))

    def leave_turn(self, who: Waiting, capacity_ratio: float) -> None:
        """Note that the response continues or ended, and give the turn to the next one."""
        self._resumes.leave(who)
        while (following := self._resumes.next(allowed=self._allowed(capacity_ratio))) is not None:
            asyncio.get_running_loop().call_soon(following.may_resume)

    def wake(self) -> None:
        """Let the requests that wait for an engine look again: the endpoints changed."""
        for who in tuple(self.parked):
            asyncio.get_running_loop().call_soon(who.woken)

    def sweep(self, now_s: float) -> None:
        """End requests that waited too long, and grant slots that became free without ``release``."""
        if self.any_ready:
            self.ready_s = now_s
        else:
            self.away_s = now_s
        if now_s - self._judged_s >= _JUDGE_S:
            self._judged_s = now_s
            self._judge(now_s)
        if not self.scheduler.num_waiting:
            return
        for ticket in self.scheduler.expire(now_s):
            ticket.payload.timed_out()
        self.pump_soon()

    def take_upstreams(self, upstreams: tuple[Upstream, ...]) -> None:
        """Take the model's endpoints. Routing forgets those that are gone, and knows the limits of the others."""
        for key in {upstream.key for upstream in self.upstreams} - {upstream.key for upstream in upstreams}:
            self.router.left(key)
        for upstream in upstreams:
            if upstream.sequences is not None:
                self.router.limit(upstream.key, upstream.sequences)
        self.upstreams = upstreams
        self.scheduler.can_pause = any(upstream.resume is ResumeLevel.CARRIED for upstream in upstreams)

    def set_routing(self, routing: RoutingRules) -> None:
        """Choose by other rules from now on. What is known of replicas and prefixes stays."""
        if routing.policy != self.router.policy.name:
            self.router.policy = policy_of(routing.policy)

    def close(self) -> None:
        """End all waiting: the model left the table."""
        self.take_upstreams(())
        self.wake()
        for ticket in self.scheduler.expire(math.inf):
            ticket.payload.timed_out()

    def _judge(self, now_s: float) -> None:
        able = {upstream.key: upstream for upstream in self.upstreams if upstream.ready}
        aside = self.outliers.ejected(able, now_s)
        for upstream in self.upstreams:
            upstream.ejected = upstream.key in aside

    def _allowed(self, capacity_ratio: float) -> int:
        return max(1, round(self.slots * capacity_ratio))

    def _look_again(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        self._timer = None
        self.pump_soon()

    def _pump(self) -> None:
        self._soon = False
        while self.scheduler.num_waiting:
            now_s = time.monotonic()
            ticket = self.scheduler.grant_next(now_s=now_s, slots=self.slots, busy=0)
            if ticket is None:
                self._preempt(now_s)
                self._look_again()
                return
            ticket.payload.granted()

    def _preempt(self, now_s: float) -> None:
        """Pause streams so that requests of better classes, which have waited, get their slots."""
        if now_s < self._preempt_s:
            return
        heir = self.scheduler.heir(now_s=now_s, slots=self.slots, busy=0)
        if heir is None:
            return
        streams = [stream for upstream in self.upstreams for stream in upstream.streams]
        found = pausable(streams, self.scheduler.queue.preemption, now_s)
        for stream in found:
            ticket = stream.ticket
            if heir is None or ticket is None or ticket.priority <= heir.priority:
                break
            stream.make_room(heir.priority)
            if ticket.place is RUNNING:
                continue
            self.scheduler.hand_over(heir, now_s=now_s)
            heir.payload.granted()
            heir = self.scheduler.heir(now_s=now_s, slots=self.slots, busy=0)
        if heir is not None:
            self._preempt_s = now_s + _PREEMPT_AGAIN_S
            self._deny(heir)

    def _deny(self, heir: Ticket) -> None:
        """Count, once for each request, that no stream could be paused for it."""
        if not heir.denied:
            heir.denied = True
            heir.payload.found_no_room()
