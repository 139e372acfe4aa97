"""Where a request of the queue is, and what the queue answers when one is offered."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

__all__ = (
    "ENDED", "GRANTED", "OUTSIDE", "OVERDUE", "RUNNING", "WAITING", "Granted", "Place", "Queued", "Rejected",
    "RejectedReason",
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
