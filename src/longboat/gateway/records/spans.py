"""Spans of requests as the gateway keeps them, and the contract of what exports them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from longboat.gateway.records.recent import Record

__all__ = ("FinishedSpan", "Span", "SpanExport", "TraceParent")


class TraceParent(NamedTuple):
    """Ids are numbers of 128 and 64 bits, never 0."""

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
        """The request is sent to a replica now. Its header lines, ``traceparent`` and perhaps ``tracestate``."""
        attempt_id = random.getrandbits(64) or 1
        self.attempt_ids.append(attempt_id)
        line = b"traceparent: 00-%032x-%016x-%02x\r\n" % (self.trace_id, attempt_id, self.sampled)
        return line + b"tracestate: %b\r\n" % self.tracestate if self.tracestate else line


class FinishedSpan(NamedTuple):
    """What is exported: the ids and the facts."""

    span: Span
    record: Record


class SpanExport(Protocol):
    """Where finished spans go. Called in the tracer's own thread."""

    def export(self, finished: Sequence[FinishedSpan]) -> bool:
        """False where they did not arrive. May block for some seconds."""

    def shutdown(self) -> None:
        """Cuts short an export that tries again and again."""
