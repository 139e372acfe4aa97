"""One model's endpoints in this process, and the requests that wait for room on them."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Protocol

from longboat.core.policy import QueuePolicy
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.health.outliers import Outliers
from longboat.routing.health.resume_budget import ResumeBudget
from longboat.routing.queue.fair_queue import UNBOUNDED, Granted, Queued, Rejected, Scheduler, Ticket

__all__ = ("Pool", "Waiting")

_JUDGE_S = 1.0
_RECHECK_S = 0.01  # while somebody waits: another process of this node may have given a slot back


class Waiting(Protocol):
    """A request that waits: for a slot, for an engine, or for its turn to be gone on with by another one."""

    def granted(self) -> None:
        """It has a slot now."""

    def timed_out(self) -> None:
        """It waited too long for a slot; its ticket is gone."""

    def woken(self) -> None:
        """There may be an engine now."""

    def may_resume(self) -> None:
        """It is its turn."""


class Pool:
    """Gives slots on ready endpoints to requests: at once where there is room and nobody waits, else in fair order.

    ready_s: when (monotonic) an endpoint was ready last
    parked: requests that wait for an engine; outliers: engines that are too slow

    Its 19 methods are about three kinds of waiting (for a slot, an engine, a turn) that share the model's endpoints.
    """

    __slots__ = (
        "_judged_s",
        "_resumes",
        "_soon",
        "_timer",
        "model",
        "outliers",
        "parked",
        "ready_s",
        "scheduler",
        "upstreams",
    )

    def __init__(self, model: str, queue: QueuePolicy) -> None:
        self.model = model
        self.scheduler = Scheduler(queue)
        self.upstreams: tuple[Upstream, ...] = ()
        self.ready_s = time.monotonic()  # whoever begins now does not know better
        self.parked: dict[Waiting, None] = {}
        self.outliers = Outliers()
        self._judged_s = 0.0
        self._resumes: ResumeBudget[Waiting] = ResumeBudget()
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def slots(self) -> int:
        """What this process may use now; 0 when no endpoint is ready."""
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

    def release(self, ticket: Ticket, now_s: float) -> None:
        """Give a slot back. What it was used for is told to ``scheduler.learn``."""
        self.scheduler.release(ticket, now_s=now_s)
        if self.scheduler.num_waiting:
            self.pump_soon()

    def cancel(self, ticket: Ticket) -> None:
        """Take out one that waited."""
        self.scheduler.cancel(ticket)

    def pump_soon(self) -> None:
        """Look for whom there is room, once what runs now has ended."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    @property
    def any_ready(self) -> bool:
        return any(upstream.ready for upstream in self.upstreams)

    def ask_turn(self, who: Waiting, capacity_ratio: float) -> bool:
        """Whether another engine may go on with this answer now; else ``who.may_resume()`` is called later.

        capacity_ratio: part of the slots that may be in this state at once, at least one
        """
        return self._resumes.ask(who, allowed=self._allowed(capacity_ratio))

    def leave_turn(self, who: Waiting, capacity_ratio: float) -> None:
        """The answer goes on, or ended."""
        self._resumes.leave(who)
        while (following := self._resumes.next(allowed=self._allowed(capacity_ratio))) is not None:
            asyncio.get_running_loop().call_soon(following.may_resume)

    def wake(self) -> None:
        """Endpoints changed."""
        for who in tuple(self.parked):
            asyncio.get_running_loop().call_soon(who.woken)

    def sweep(self, now_s: float) -> None:
        """Lets go who waited too long, and looks for room that came otherwise than by ``finish``."""
        if self.any_ready:
            self.ready_s = now_s
        if now_s - self._judged_s >= _JUDGE_S:
            self._judged_s = now_s
            self._judge(now_s)
        if not self.scheduler.num_waiting:
            return
        for ticket in self.scheduler.expire(now_s):
            ticket.payload.timed_out()
        self.pump_soon()

    def close(self) -> None:
        """The model has left: nobody waits for it any more."""
        self.upstreams = ()
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
                self._look_again()
                return
            ticket.payload.granted()
