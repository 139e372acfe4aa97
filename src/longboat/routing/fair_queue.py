"""Decides who waits and who goes next when a model has no room: weighted fair queueing by tokens in priority classes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from longboat.core.policy import QueuePolicy

__all__ = ("GRANTED", "UNBOUNDED", "Granted", "Queued", "Rejected", "RejectedReason", "Scheduler", "Ticket")

UNBOUNDED = 1 << 30
"""What to pass as ``slots`` where replicas have no capacity of their own."""


class RejectedReason(enum.StrEnum):
    """Why a request may not even wait."""

    QUEUE_FULL = "queue_full"
    WAIT_TOO_LONG = "wait_too_long"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Granted:
    """The ticket has a slot: send it, and call ``finish`` when it ended."""


GRANTED = Granted()


@dataclass(frozen=True, slots=True)
class Queued:
    """The ticket waits: ``grant_next`` or ``expire`` returns it later, unless it is cancelled.

    predicted_wait_s: None while nothing was learned about this model's speed
    """

    predicted_wait_s: float | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The ticket is not taken: answer 429. retry_after_s: at least 1; detail: a sentence for the client."""

    reason: RejectedReason
    retry_after_s: int
    detail: str


@dataclass(slots=True, eq=False)
class Ticket:
    """One request of one model.

    cost_tokens: estimate of prompt and completion; arrived_s, deadline_s: on the clock that is passed as ``now_s``
    payload: the caller's; attributes that begin with an underscore are the scheduler's
    """

    tenant: str
    weight: float
    priority: int
    cost_tokens: int
    arrived_s: float
    deadline_s: float | None = None
    payload: Any = None


class Scheduler:
    """The queue of one model in one gateway process.

    slots: all requests that this process may have on ready replicas now; busy: how many it has.
    Call ``grant_next`` until None whenever a request finished or ``slots`` grew, and ``expire`` then ``grant_next``
    every 100 ms or so while ``num_waiting`` is not 0. ``queue`` may be replaced at any time.
    """

    def __init__(self, queue: QueuePolicy) -> None:
        self.queue = queue

    @property
    def num_waiting(self) -> int:
        raise NotImplementedError

    @property
    def num_running(self) -> int:
        """Tickets that were granted and are not finished."""
        raise NotImplementedError

    def waiting_of(self, tenant: str) -> int:
        raise NotImplementedError

    def running_of(self, tenant: str) -> int:
        raise NotImplementedError

    def offer(self, ticket: Ticket, *, now_s: float, slots: int, busy: int) -> Granted | Queued | Rejected:
        """A new request: runs at once, waits, or is refused."""
        raise NotImplementedError

    def grant_next(self, *, now_s: float, slots: int, busy: int) -> Ticket | None:
        """The waiting ticket that goes next, now running; None when there is no room, or none may have it."""
        raise NotImplementedError

    def finish(self, ticket: Ticket, *, now_s: float, used_tokens: int | None, served: bool) -> None:
        """A granted ticket ended: its slot is free, and its tenant pays for what was used.

        used_tokens: prompt and completion, None if unknown (the estimate stands); served: an engine did the work, so
        its time teaches how long others wait. Has no effect on a ticket that is not running.
        """
        raise NotImplementedError

    def cancel(self, ticket: Ticket) -> bool:
        """A waiting ticket left. False, and no effect, if it does not wait (a running one is to be finished)."""
        raise NotImplementedError

    def expire(self, now_s: float) -> list[Ticket]:
        """Tickets that waited past their deadline or ``max_wait_s``, taken out. Each is returned once."""
        raise NotImplementedError

    def predicted_wait_s(self, tenant: str, *, priority: int, slots: int, busy: int) -> float | None:
        """How long a request of ``tenant`` would wait if it came now; None while nothing was learned."""
        raise NotImplementedError
