"""Requests as the queue sees them, and what it answers when one is offered."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from longboat.routing.queue.flows import Flow

__all__ = (
    "ENDED", "GRANTED", "OUTSIDE", "OVERDUE", "RUNNING", "WAITING", "Granted", "Place", "Queued", "Rejected",
    "RejectedReason", "Ticket",
)  # fmt: skip


class RejectedReason(enum.StrEnum):
    """Why a request may not even wait."""

    QUEUE_FULL = "queue_full"
    WAIT_TOO_LONG = "wait_too_long"
    DEADLINE = "deadline"


class Place(enum.Enum):
    """Where a ticket is. OVERDUE: taken out of its queue, and not yet returned by ``expire``. ENDED: its slot is free,
    and what it used is not yet known."""

    OUTSIDE = enum.auto()
    WAITING = enum.auto()
    OVERDUE = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


# A member of an enum is looked up each time that it is named; these are not.
OUTSIDE: Final = Place.OUTSIDE
WAITING: Final = Place.WAITING
OVERDUE: Final = Place.OVERDUE
RUNNING: Final = Place.RUNNING
ENDED: Final = Place.ENDED


@dataclass(frozen=True)
class Granted:
    """The ticket has a slot: send it, and call ``finish`` when it ended."""


GRANTED = Granted()


@dataclass(frozen=True)
class Queued:
    """The ticket waits: ``grant_next`` or ``expire`` returns it later, unless it is cancelled.

    predicted_wait_s: None while nothing was learned about this model's speed
    """

    predicted_wait_s: float | None


@dataclass(frozen=True)
class Rejected:
    """The ticket is not taken: answer 429. retry_after_s: at least 1; detail: a sentence for the client."""

    reason: RejectedReason
    retry_after_s: int
    detail: str


class Ticket:
    """One request of one model.

    weight: above 0; cost_tokens: estimate of prompt and completion
    arrived_s, deadline_s: on the clock that is passed as ``now_s``
    payload: the caller's; the attributes after it are the scheduler's, to be read only
    """

    __slots__ = (
        "arrived_s", "charged_tokens", "cost_tokens", "deadline_s", "ended_s", "expires_s", "flow", "granted_s",
        "payload", "place", "priority", "tenant", "weight",
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
        self.weight = weight
        self.priority = priority
        self.cost_tokens = cost_tokens
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.payload = payload
        self.place = OUTSIDE
        self.flow: Flow | None = None
        self.charged_tokens = 0.0
        self.granted_s = 0.0
        self.expires_s = 0.0
        self.ended_s = 0.0
