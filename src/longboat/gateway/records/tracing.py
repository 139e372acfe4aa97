"""Traces of requests across gateway and engine: W3C ``traceparent``, and OTLP over HTTP where it is configured."""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from longboat.core.errors import UserInputError
from longboat.gateway.records.recent import Record

__all__ = ("FinishedSpan", "Span", "SpanExport", "TraceParent", "Tracer", "parse_traceparent", "passed_on")

_HEX = frozenset(b"0123456789abcdef")
_MAX_TRACESTATE_BYTES = 512
_MAX_PENDING = 8192
_BATCH = 512
_PAUSE_S = 1.0


class TraceParent(NamedTuple):
    """Ids are numbers of 128 and 64 bits, never 0."""

    trace_id: int
    span_id: int
    sampled: bool


def parse_traceparent(value: bytes) -> TraceParent | None:
    """None where it is not what https://www.w3.org/TR/trace-context/ says; the trace then starts anew."""
    parts = value.strip().split(b"-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2]:
        return None
    version, trace, span, flags = parts[:4]
    if not _HEX.issuperset(version + trace + span + flags) or version == b"ff" or (version == b"00" and parts[4:]):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1)) if trace_id and span_id else None


def passed_on(noted: Mapping[bytes, bytes]) -> bytes:
    """The client's own trace headers as lines for the engine: what a gateway without a tracer sends."""
    names = (b"traceparent", b"tracestate")
    return b"".join(b"%b: %b\r\n" % (name, noted[name]) for name in names if name in noted)


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


class Tracer:
    """Decides which requests are traced, and hands finished spans to a thread that exports them.

    A client's decision (its ``traceparent``) is respected; of the other requests, ``sample_ratio`` are traced. Spans
    that the collector does not take are dropped and counted.

    endpoint: of the collector, ``http://HOST:4318``; ``/v1/traces`` is added where it has no path
    export: in its place, for tests
    :raises UserInputError: OpenTelemetry's SDK or its OTLP exporter is not installed
    """

    def __init__(
        self,
        endpoint: str,
        *,
        sample_ratio: float = 1.0,
        resource: Mapping[str, str] | None = None,
        export: SpanExport | None = None,
    ) -> None:
        self._ratio = sample_ratio
        self._export = export or _otlp_export(endpoint, resource or {})
        self._endpoint = endpoint
        self._pending: deque[FinishedSpan] = deque()
        self._wake = threading.Event()
        self._closing = self._failing = False
        self.num_exported = self.num_dropped = 0
        self._thread = threading.Thread(target=self._export_forever, name="traces", daemon=True)
        self._thread.start()

    def start(self, traceparent: bytes | None, tracestate: bytes | None = None) -> Span:
        """A request was received. One that is not traced gets a span too: it tells the engine so."""
        parent = parse_traceparent(traceparent) if traceparent is not None else None
        if parent is None:
            return Span(None, b"", sampled=random.random() < self._ratio)
        state = tracestate if tracestate is not None and len(tracestate) <= _MAX_TRACESTATE_BYTES else b""
        return Span(parent, state, sampled=parent.sampled)

    def finish(self, span: Span, record: Record) -> None:
        """The request ended; record has one attempt for each of the span's. Never blocks."""
        if not span.sampled:
            return
        if len(self._pending) >= _MAX_PENDING:
            self.num_dropped += 1
            return
        self._pending.append(FinishedSpan(span, record))
        if len(self._pending) == _BATCH:
            self._wake.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Export what waits, for at most about this long. Blocks: call it in a thread."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._export.shutdown()

    def _export_forever(self) -> None:
        while not self._closing:
            self._wake.wait(_PAUSE_S)
            self._wake.clear()
            while self._pending:
                self._export_some()

    def _export_some(self) -> None:
        batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
        if self._export.export(batch):
            self.num_exported += len(batch)
            self._failing = False
            return
        self.num_dropped += len(batch)
        if not self._failing:
            self._failing = True
            print(
                f"longboat gateway: {self._endpoint} takes no traces; they are dropped until it does", file=sys.stderr
            )


def _otlp_export(endpoint: str, resource: Mapping[str, str]) -> SpanExport:
    try:
        from longboat.gateway.records.trace_export import OtlpExport
    except ImportError as error:
        raise UserInputError(
            f"traces are configured, but OpenTelemetry is not installed ({error})",
            hint="install longboat[tracing], or take gateway.tracing out",
        ) from error
    return OtlpExport(endpoint, resource)
