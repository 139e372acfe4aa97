"""The last requests of one process: what happened when, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from longboat.gateway.records.routed import Routed, explained
from longboat.routing.policies.contract import Reason

__all__ = ("Attempt", "Decision", "RecentRequests", "Record", "summary", "timeline")

_RECORD_BYTES: Final = 1100  # measured with tracemalloc: numbers, tuples, ids and paths
_ATTEMPT_BYTES: Final = 250
_DECISION_BYTES: Final = 200


class Attempt(NamedTuple):
    """One attempt at a replica. Times are seconds after the request was received."""

    replica: str
    sent_s: float
    # why the replica did not respond; empty for the one that did
    failure: str = ""
    failed_s: float | None = None
    # why this replica was chosen; empty for the first one, which was the least busy
    reason: Reason = ""


class Decision(NamedTuple):
    """What was decided about a request whose way was not the ordinary one, after how many seconds, and why."""

    at_s: float
    name: str
    reason: str


class Record(NamedTuple):
    """A finished request, without its prompt and response. Make it with positional arguments: that is quicker."""

    request_id: str
    tenant: str
    path: str
    # the name that the client requested
    model: str | None
    # the model that was chosen
    pool: str | None
    # the routing decision in words
    reason: str
    # Unix time; the other times are seconds after it, and None where the event never came
    received_unix_s: float
    routed_s: float | None
    queued_s: float | None
    granted_s: float | None
    # in order; the last one responded unless it has a failure
    attempts: tuple[Attempt, ...]
    first_byte_s: float | None
    ended_s: float
    # of the HTTP response; 499 where the client left
    status: int
    # one of ``metrics.OUTCOMES``
    outcome: str
    # of the error; empty without one
    code: str
    bytes_out: int
    # tokens; None is unknown
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    decisions: tuple[Decision, ...] = ()
    # the choice among replicas; None where there was none
    routed: Routed | None = None

    @property
    def replica(self) -> str:
        """The replica that responded, or was tried last."""
        return self.attempts[-1].replica if self.attempts else ""

    @property
    def retries(self) -> int:
        return max(0, len(self.attempts) - 1)

    @property
    def found_tokens(self) -> int | None:
        """The prompt tokens found in the cache. Where only the engine's feed tells, that may come after the record."""
        if self.cached_tokens is not None or self.routed is None:
            return self.cached_tokens
        return self.routed.found_tokens

    @property
    def queue_s(self) -> float:
        """How long the request waited for a slot."""
        if self.queued_s is None:
            return 0.0
        return (self.ended_s if self.granted_s is None else self.granted_s) - self.queued_s


class RecentRequests:
    """A ring that drops the oldest. ``max_records`` 0 keeps none; ``max_bytes`` limits the estimate of their memory."""

    __slots__ = ("_bytes", "_max_bytes", "_max_records", "_ring")

    def __init__(self, max_records: int = 1000, max_bytes: int = 4 * 1024 * 1024) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ring: deque[Record] = deque()

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def num_bytes(self) -> int:
        return self._bytes

    def add(self, record: Record) -> None:
        ring = self._ring
        ring.append(record)
        num_bytes = self._bytes + _size(record)
        while len(ring) > self._max_records or (num_bytes > self._max_bytes and ring):
            num_bytes -= _size(ring.popleft())
        self._bytes = num_bytes

    def get(self, request_id: str, tenant: str | None = None) -> Record | None:
        """Return the newest with this id, of ``tenant`` where given, since clients may choose any id."""
        matching = (record for record in self._newest_first(tenant) if record.request_id == request_id)
        return next(matching, None)

    def newest(self, tenant: str | None = None, limit: int = 50) -> list[Record]:
        """Return records, the newest first, of ``tenant`` where given."""
        return list(islice(self._newest_first(tenant), limit))

    def _newest_first(self, tenant: str | None) -> Iterator[Record]:
        for record in reversed(self._ring):
            if tenant is None or record.tenant == tenant:
                yield record


def summary(record: Record) -> dict[str, Any]:
    """Return the record as one row of a list."""
    return {
        "id": record.request_id,
        "tenant": record.tenant,
        "path": record.path,
        "model": record.model,
        "pool": record.pool,
        "replica": record.replica,
        "received": record.received_unix_s,
        "status": record.status,
        "outcome": record.outcome,
        "error": record.code or None,
        "ttft_ms": _ms(record.first_byte_s),
        "total_ms": _ms(record.ended_s),
        "queue_ms": _ms(record.queue_s),
        "retries": record.retries,
        "bytes": record.bytes_out,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cached_tokens": record.found_tokens,
    }


def timeline(record: Record) -> dict[str, Any]:
    """Return the record as a document: facts, the routing decision, and ``events`` in the order of their times."""
    events = sorted(_events(record), key=lambda event: event[0])
    routing = {"asked": record.model, "chosen": record.pool, "reason": record.reason}
    return {
        **summary(record),
        "routing": {**routing, **_choice_of(record)},
        "events": [{"at_ms": _ms(at_s), "event": name, **facts} for at_s, name, facts in events],
    }


def _choice_of(record: Record) -> dict[str, Any]:
    if record.routed is None:
        return {"choice": None}
    sent_s = record.attempts[-1].sent_s if record.attempts else None
    waited_s = None if sent_s is None or record.first_byte_s is None else record.first_byte_s - sent_s
    return {
        "choice": explained(
            record.routed,
            waited_s=waited_s,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.found_tokens,
        )
    }


def _events(record: Record) -> Iterator[tuple[float, str, dict[str, Any]]]:
    yield 0.0, "received", {"path": record.path}
    if record.routed_s is not None:
        yield record.routed_s, "routed", {"tenant": record.tenant, "pool": record.pool, "reason": record.reason}
    if record.queued_s is not None:
        yield record.queued_s, "queued", {}
    if record.granted_s is not None:
        yield record.granted_s, "granted", {"waited_ms": _ms(record.queue_s)}
    for number, attempt in enumerate(record.attempts, 1):
        why = {"reason": str(attempt.reason)} if attempt.reason else {}
        yield attempt.sent_s, "sent", {"replica": attempt.replica, "attempt": number, **why}
        if attempt.failure:
            failed_s = attempt.sent_s if attempt.failed_s is None else attempt.failed_s
            yield failed_s, "attempt_failed", {"replica": attempt.replica, "reason": attempt.failure}
    for decision in record.decisions:
        yield decision.at_s, decision.name, {"reason": decision.reason}
    if record.first_byte_s is not None:
        yield record.first_byte_s, "first_byte", {}
    yield record.ended_s, "ended", {"outcome": record.outcome, "status": record.status, "error": record.code or None}


def _size(record: Record) -> int:
    """Estimate the bytes. Ids and paths are short; reasons and failures come from outside, in any length."""
    attempts = record.attempts
    size = _RECORD_BYTES + len(record.reason)
    if attempts:
        size += _ATTEMPT_BYTES * len(attempts)
        if len(attempts) > 1 or attempts[0].failure:
            size += sum(len(attempt.failure) for attempt in attempts)
    if record.routed is not None:
        size += record.routed.num_bytes
    if record.decisions:
        size += sum(_DECISION_BYTES + len(decision.reason) for decision in record.decisions)
    return size


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
