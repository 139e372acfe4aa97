"""A request's place in a trace, as W3C ``traceparent`` tells it to the next program."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, NamedTuple

from longboat.gateway.records.recent import Record

__all__ = ("FinishedSpan", "Span", "TraceParent", "parse_traceparent", "passed_on")

_MAX_ID: Final = (1 << 64) - 1
_HEX = frozenset(b"0123456789abcdef")


class TraceParent(NamedTuple):
    """The trace of a client. Ids are numbers of 128 and 64 bits, never 0."""

    trace_id: int
    span_id: int
    sampled: bool


def parse_traceparent(value: bytes) -> TraceParent | None:
    """None where it is not what https://www.w3.org/TR/trace-context/ says; the trace then begins here."""
    parts = value.strip().split(b"-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2]:
        return None
    version, trace, span, flags = parts[:4]
    if not _HEX.issuperset(version + trace + span + flags) or version == b"ff" or (version == b"00" and parts[4:]):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1)) if trace_id and span_id else None


def passed_on(noted: Mapping[bytes, bytes]) -> bytes:
    """Return the client's own trace headers as lines for the engine: what a gateway without a tracer sends."""
    names = (b"traceparent", b"tracestate")
    return b"".join(b"%b: %b\r\n" % (name, noted[name]) for name in names if name in noted)


class Span:
    """One request's place in a trace, and one place for each of its attempts."""

    __slots__ = ("_trace", "attempt_ids", "method", "parent_id", "sampled", "span_id", "trace_id", "tracestate")

    def __init__(self, parent: TraceParent | None, tracestate: bytes, *, sampled: bool) -> None:
        self.trace_id = trace_id = parent.trace_id if parent else random.getrandbits(128) or 1
        self._trace = trace_id.to_bytes(16, "big").hex().encode()
        self.parent_id = parent.span_id if parent else 0
        self.span_id = random.getrandbits(64) or 1
        self.sampled = sampled
        self.tracestate = tracestate
        self.attempt_ids: list[int] = []
        self.method = "POST"  # of the request

    def attempt(self) -> bytes:
        """Begin an attempt; return its header lines, ``traceparent`` and perhaps ``tracestate``."""
        ids = self.attempt_ids
        attempt_id = (self.span_id + len(ids)) % _MAX_ID + 1  # differs from the others of this request
        ids.append(attempt_id)
        own = attempt_id.to_bytes(8, "big").hex().encode()
        line = b"traceparent: 00-%b-%b-%b\r\n" % (self._trace, own, b"01" if self.sampled else b"00")
        return line + b"tracestate: %b\r\n" % self.tracestate if self.tracestate else line


class FinishedSpan(NamedTuple):
    """A finished request with the ids of its spans."""

    span: Span
    record: Record
