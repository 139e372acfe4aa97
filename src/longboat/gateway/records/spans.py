"""Spans of requests as the gateway keeps them, and the contract of an exporter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from longboat.gateway.records.recent import Record

__all__ = ("FinishedSpan", "Span", "SpanExport", "TraceParent")


class TraceParent(NamedTuple):
    """The trace of a client. Ids are numbers of 128 and 64 bits, never 0."""

    trace_id: int
    span_id: int
    sampled: bool


class Span:
    """One request's place in a trace, and one place for each of its attempts."""

    __slots__ = ("attempt_ids", "parent_id", "sampled", "span_id", "trace_id", "tracestate")

    def __init__(self, parent: TraceParent | None, tracestate: bytes, *, sampled: bool) -> None:
        self.trace_id = parent.trace_id if parent else random.getrandbits(128) or 1
        self.parent_id = parent.span_id if parent else 0
        self.span_id = random.getrandbits(64) or 1
        self.sampled = sampled
        self.tracestate = tracestate
        self.attempt_ids: list[int] = []

    def attempt(self) -> bytes:
        """Begin an attempt; return its header lines, ``traceparent`` and perhaps ``tracestate``."""
        attempt_id = random.getrandbits(64) or 1
        self.attempt_ids.append(attempt_id)
        line = b"traceparent: 00-%032x-%016x-%02x\r\n" % (self.trace_id, attempt_id, self.sampled)
        return line + b"tracestate: %b\r\n" % self.tracestate if self.tracestate else line


class FinishedSpan(NamedTuple):
    """A finished request with the ids of its spans."""

    span: Span
    record: Record


class SpanExport(Protocol):
    """The receiver of finished spans. Called in the tracer's own thread."""

    def export(self, finished: Sequence[FinishedSpan]) -> bool:
        """Send spans. Return False where they did not arrive. May block for some seconds."""

    def shutdown(self) -> None:
        """Cut an export short that retries."""
