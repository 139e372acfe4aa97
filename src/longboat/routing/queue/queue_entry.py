"""Where a request of the queue is, and the verdicts of the queue."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

__all__ = (
    "ENDED", "GRANTED", "OUTSIDE", "OVERDUE", "RUNNING", "WAITING", "Granted", "Place", "Queued", "Rejected",
    "RejectedReason",
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


GRANTED: Final = Granted()


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
