"""Traces of requests across gateway and engine: W3C ``traceparent``, and OTLP over HTTP where it is configured."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Mapping

from longboat.gateway.records.recent import Record
from longboat.gateway.records.spans import FinishedSpan, Span, SpanExport, TraceParent
from longboat.telemetry import logger

__all__ = ("Tracer", "parse_traceparent", "passed_on")

log = logger("gateway")

_HEX = frozenset(b"0123456789abcdef")
_MAX_TRACESTATE_BYTES = 512
_MAX_PENDING = 8192
_BATCH = 512
_PAUSE_S = 1.0


def parse_traceparent(value: bytes) -> TraceParent | None:
    """Read the header; None where it breaks https://www.w3.org/TR/trace-context/, and a new trace begins."""
    parts = value.strip().split(b"-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2]:
        return None
    version, trace, span, flags = parts[:4]
    if not _HEX.issuperset(version + trace + span + flags) or version == b"ff" or (version == b"00" and parts[4:]):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1)) if trace_id and span_id else None


def passed_on(noted: Mapping[bytes, bytes]) -> bytes:
    """Return the client's own trace headers as lines for the engine, for a gateway without a tracer."""
    names = (b"traceparent", b"tracestate")
    return b"".join(b"%b: %b\r\n" % (name, noted[name]) for name in names if name in noted)


class Tracer:
    """Decides which requests are traced, and passes finished spans to a thread that exports them.

    A client's decision (its ``traceparent``) is respected; ``sample_ratio`` of the other requests are traced. Spans
    that the collector does not take are dropped and counted.
    """

    def __init__(self, endpoint: str, export: SpanExport, *, sample_ratio: float = 1.0) -> None:
        self._ratio = sample_ratio
        self._export = export
        # of the collector, for messages
        self._endpoint = endpoint
        self._pending: deque[FinishedSpan] = deque()
        self._wake = threading.Event()
        self._closing = self._failing = False
        self.num_exported = self.num_dropped = 0
        self._exporter = threading.Thread(target=self._export_forever, name="traces", daemon=True)
        self._exporter.start()

    def start(self, traceparent: bytes | None, tracestate: bytes | None = None) -> Span:
        """Begin the span of a request. A request that is not traced has one too, which tells the engine so."""
        parent = parse_traceparent(traceparent) if traceparent is not None else None
        if parent is None:
            return Span(None, b"", sampled=random.random() < self._ratio)
        state = tracestate if tracestate is not None and len(tracestate) <= _MAX_TRACESTATE_BYTES else b""
        return Span(parent, state, sampled=parent.sampled)

    def finish(self, span: Span, record: Record) -> None:
        """End the span. ``record`` has one attempt for each of the span's. Never blocks."""
        if not span.sampled:
            return
        if len(self._pending) >= _MAX_PENDING:
            self.num_dropped += 1
            return
        self._pending.append(FinishedSpan(span, record))
        if len(self._pending) == _BATCH:
            self._wake.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Export what waits, for about ``timeout_s`` at most. Blocks: call it in a thread."""
        self._closing = True
        self._wake.set()
        self._exporter.join(timeout_s)
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
            log.warning("the collector %s does not accept traces; they are dropped until it does", self._endpoint)
