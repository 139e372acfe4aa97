"""Requests as the queue sees them, and the verdicts of the queue."""

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
    """The reason why a request may not even wait."""

    QUEUE_FULL = "queue_full"
    WAIT_TOO_LONG = "wait_too_long"
    DEADLINE = "deadline"


class Place(enum.Enum):
    """The state of a ticket."""

    OUTSIDE = enum.auto()
    WAITING = enum.auto()
    OVERDUE = enum.auto()  # taken out of its queue, but not yet returned by ``expire``
    RUNNING = enum.auto()
    ENDED = enum.auto()  # its slot is free, but its use of tokens is not yet known


# Naming a member of an enum costs a look-up each time; naming these constants does not.
OUTSIDE: Final = Place.OUTSIDE
WAITING: Final = Place.WAITING
OVERDUE: Final = Place.OVERDUE
RUNNING: Final = Place.RUNNING
ENDED: Final = Place.ENDED


@dataclass(frozen=True)
class Granted:
    """The verdict that the ticket has a slot: send the request, and call ``finish`` when it ended."""


GRANTED = Granted()


@dataclass(frozen=True)
class Queued:
    """The verdict that the ticket waits: ``grant_next`` or ``expire`` returns it later, unless it is cancelled."""

    predicted_wait_s: float | None  # None before anything was learned about this model's speed


@dataclass(frozen=True)
class Rejected:
    """The verdict that the ticket is refused: answer 429."""

    reason: RejectedReason
    retry_after_s: int  # at least 1
    detail: str  # a sentence for the client


class Ticket:
    """One request of one model.

    Times are on the clock that is passed as ``now_s``. More than 12 attributes: a plain record, without behaviour.
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
        self.weight = weight  # above 0
        self.priority = priority
        self.cost_tokens = cost_tokens  # estimate of prompt and completion
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.payload = payload  # the caller's; the attributes below belong to the scheduler, and others only read them
        self.place = OUTSIDE
        self.flow: Flow | None = None
        self.charged_tokens = 0.0
        self.granted_s = 0.0
        self.expires_s = 0.0
        self.ended_s = 0.0
