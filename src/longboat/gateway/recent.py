"""The last requests of one process, as an operator wants to see them: when what happened, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ("Attempt", "RecentRequests", "Record", "timeline")


class Attempt(NamedTuple):
    """One sending to a replica. Times are seconds after the request was received.

    failure: why it gave no answer; empty for the one that did
    """

    replica: str
    sent_s: float
    failure: str = ""
    failed_s: float | None = None


class Record(NamedTuple):
    """A finished request: no word of what was asked or answered. Make it with positional arguments, it is quicker.

    received_unix_s: Unix time; all other times are seconds after it, None where that never happened
    model: the name that was asked for; pool: the model that was chosen; reason: the routing decision in words
    status: of the HTTP answer, 499 where the client left; outcome: one of ``metrics.OUTCOMES``; code: of the error
    attempts: in order, the last one answered unless it has a failure
    tokens: None is unknown
    """

    request_id: str
    tenant: str
    path: str
    model: str | None
    pool: str | None
    reason: str
    received_unix_s: float
    routed_s: float | None
    queued_s: float | None
    granted_s: float | None
    attempts: tuple[Attempt, ...]
    first_byte_s: float | None
    ended_s: float
    status: int
    outcome: str
    code: str
    bytes_out: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None

    @property
    def replica(self) -> str:
        """The replica that answered, or was tried last."""
        return self.attempts[-1].replica if self.attempts else ""

    @property
    def retries(self) -> int:
        return max(0, len(self.attempts) - 1)

    @property
    def queue_s(self) -> float:
        """How long it waited for room."""
        if self.queued_s is None:
            return 0.0
        return (self.ended_s if self.granted_s is None else self.granted_s) - self.queued_s


class RecentRequests:
    """A ring that forgets the oldest. ``max_records`` 0 keeps none.

    max_bytes: our estimate of what the records hold in memory
    """

    def __init__(self, max_records: int = 1000, max_bytes: int = 4 * 1024 * 1024) -> None: ...

    def add(self, record: Record) -> None: ...

    def get(self, request_id: str, tenant: str | None = None) -> Record | None:
        """The newest with this id, among those of ``tenant`` where it is given."""

    def newest(self, tenant: str | None = None, limit: int = 50) -> list[Record]:
        """The newest first, those of ``tenant`` where it is given."""
        return []

    def of_tenant(self, tenant: str, limit: int = 50) -> list[Record]:
        return self.newest(tenant, limit)


def timeline(record: Record) -> dict[str, Any]:
    """The record as a document: facts, and ``events`` in the order of their times."""
    return {}


def _events(record: Record) -> Iterator[dict[str, Any]]:
    yield from ()


_ = deque
