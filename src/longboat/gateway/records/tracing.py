"""Decides which requests are traced, and exports finished spans where a collector is configured."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from longboat.gateway.native.leaf_work import named
from longboat.gateway.records.recent import Record
from longboat.gateway.records.spans import FinishedSpan, Span, parse_traceparent
from longboat.gateway.records.trace_export import OtlpExport
from longboat.telemetry import Guard, logger

__all__ = ("SpanExport", "Tracer")

log = logger("gateway")

_MAX_TRACESTATE_BYTES: Final = 512
_MAX_PENDING: Final = 8192
_BATCH: Final = 512
_PAUSE_S: Final = 1.0


class SpanExport(Protocol):
    """Where finished spans go. Called in the tracer's own thread."""

    def export(self, finished: Sequence[FinishedSpan]) -> str:
        """Return why they did not arrive; an empty text where they did. May block for some seconds."""

    def shutdown(self) -> None:
        """Cuts short an export that tries again and again."""


class Tracer:
    """Decides which requests are traced, and passes finished spans to a thread that exports them.

    A client's decision (its ``traceparent``) is respected; ``sample_ratio`` of the other requests are traced. Spans
    that the collector does not take are dropped and counted.

    endpoint: of the collector, ``http://HOST:4318``; ``/v1/traces`` is added where it has no path
    export: in its place, for tests
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
        self._export = export or OtlpExport(endpoint, resource or {})
        self._shown = endpoint.partition("?")[0]  # a query may hold a key
        self._pending: deque[FinishedSpan] = deque()
        self._wake = threading.Event()
        self._closing = self._failing = False
        self.num_exported = self.num_dropped = 0
        self._worker = threading.Thread(target=self._export_forever, name="traces", daemon=True)
        self._worker.start()

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
        self._pending.append(named(FinishedSpan, (span, record)))
        if len(self._pending) == _BATCH:
            self._wake.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Export what waits, for about ``timeout_s`` at most. Blocks: call it in a thread."""
        self._closing = True
        self._wake.set()
        self._worker.join(timeout_s)
        self._export.shutdown()

    def _export_forever(self) -> None:
        guard = Guard(log, "the export of traces")
        while not self._closing:
            self._wake.wait(_PAUSE_S)
            self._wake.clear()
            while self._pending:
                with guard:
                    self._export_some()

    def _export_some(self) -> None:
        batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
        if not (why := self._export.export(batch)):
            self.num_exported += len(batch)
            if self._failing:
                log.warning("the collector %s accepts traces again; %d were dropped", self._shown, self.num_dropped)
            self._failing = False
            return
        self.num_dropped += len(batch)
        if not self._failing:
            self._failing = True
            what = "the collector %s does not accept traces (%s); they are dropped until it does"
            log.warning(what, self._shown, why)
