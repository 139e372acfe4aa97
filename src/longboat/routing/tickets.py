"""Requests as the queue sees them, and what it answers when one is offered."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longboat.routing.flows import Flow

__all__ = ("GRANTED", "Granted", "Place", "Queued", "Rejected", "RejectedReason", "Ticket")


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


class Place(enum.Enum):
    """Where a ticket is. OVERDUE: taken out of its queue, and not yet returned by ``expire``. ENDED: its slot is free,
    and what it used is not yet known."""

    OUTSIDE = enum.auto()
    WAITING = enum.auto()
    OVERDUE = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True, eq=False)
class Ticket:
    """One request of one model.

    weight: above 0; cost_tokens: estimate of prompt and completion
    arrived_s, deadline_s: on the clock that is passed as ``now_s``
    payload: the caller's; the attributes after it are the scheduler's, to be read only
    """

    tenant: str
    weight: float
    priority: int
    cost_tokens: int
    arrived_s: float
    deadline_s: float | None = None
    payload: Any = None
    place: Place = field(default=Place.OUTSIDE, init=False)
    flow: Flow | None = field(default=None, init=False, repr=False)
    charged_tokens: float = field(default=0.0, init=False)
    granted_s: float = field(default=0.0, init=False)
    expires_s: float = field(default=0.0, init=False)
    ended_s: float = field(default=0.0, init=False)
