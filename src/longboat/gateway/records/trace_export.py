"""Finished requests as OpenTelemetry spans, sent by OTLP over HTTP. The only module that imports OpenTelemetry."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from longboat.gateway.records.recent import Attempt, Record
from longboat.gateway.records.spans import FinishedSpan, Span

__all__ = ("OtlpExport", "spans_of", "traces_url")

Value = str | int | float

_EXPORT_TIMEOUT_S = 5.0
_SCOPE = InstrumentationScope("longboat.gateway")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpExport:
    """Sends spans to one collector, with the headers in the variable OTEL_EXPORTER_OTLP_HEADERS."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        """resource: attributes of this process besides ``service.name``"""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the tracer logs it once
        self._resource = Resource.create({"service.name": "longboat-gateway", **resource})
        self._exporter = OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=_EXPORT_TIMEOUT_S)

    def export(self, finished: Sequence[FinishedSpan]) -> bool:
        spans = [span for item in finished for span in spans_of(item, self._resource)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def traces_url(endpoint: str) -> str:
    """Return the URL for spans: the endpoint, with ``/v1/traces`` where it has no path."""
    return endpoint.rstrip("/") + "/v1/traces" if urlsplit(endpoint).path in ("", "/") else endpoint


def spans_of(finished: FinishedSpan, resource: Resource) -> Iterator[ReadableSpan]:
    """Make the request's own span (kind server), and one (kind client) for each attempt at a replica."""
    span, record = finished
    yield _request_span(span, record, resource)
    parent = _context(span, span.span_id)
    for number, (attempt_id, attempt) in enumerate(zip(span.attempt_ids, record.attempts, strict=False)):
        next_attempt = record.attempts[number + 1] if number + 1 < len(record.attempts) else None
        yield ReadableSpan(
            name=f"send {record.pool or record.model}",
            context=_context(span, attempt_id),
            parent=parent,
            resource=resource,
            attributes={"longboat.replica": attempt.replica, "longboat.attempt": number + 1},
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.ERROR, attempt.failure) if attempt.failure else Status(StatusCode.UNSET),
            start_time=_at_ns(record, attempt.sent_s),
            end_time=_at_ns(record, _end_of(attempt, next_attempt, record)),
            instrumentation_scope=_SCOPE,
        )


def _request_span(span: Span, record: Record, resource: Resource) -> ReadableSpan:
    remote = SpanContext(span.trace_id, span.parent_id, is_remote=True, trace_flags=_SAMPLED)
    return ReadableSpan(
        name=f"POST {record.path}",
        context=_context(span, span.span_id),
        parent=remote if span.parent_id else None,
        resource=resource,
        attributes=_attributes(record),
        events=tuple(_events(record)),
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, record.code or record.outcome) if _failed(record) else Status(StatusCode.UNSET),
        start_time=_at_ns(record, 0.0),
        end_time=_at_ns(record, record.ended_s),
        instrumentation_scope=_SCOPE,
    )


def _attributes(record: Record) -> dict[str, Value]:
    """Name the facts by the semantic conventions of HTTP and generative AI, and by names of Longboat."""
    values: dict[str, Value | None] = {
        "http.request.method": "POST",
        "url.path": record.path,
        "http.response.status_code": record.status,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.pool,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "longboat.cached_tokens": record.cached_tokens,
        "longboat.request_id": record.request_id,
        "longboat.tenant": record.tenant,
        "longboat.replica": record.replica or None,
        "longboat.reason": record.reason or None,
        "longboat.outcome": record.outcome,
        "error.type": record.code or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _events(record: Record) -> Iterator[Event]:
    moments = (
        ("routed", record.routed_s),
        ("queued", record.queued_s),
        ("granted", record.granted_s),
        ("first_byte", record.first_byte_s),
    )
    for name, at_s in moments:
        if at_s is not None:
            yield Event(name, timestamp=_at_ns(record, at_s))


def _failed(record: Record) -> bool:
    return record.status >= 500 or record.outcome in ("broken", "engine_error")


def _end_of(attempt: Attempt, next_attempt: Attempt | None, record: Record) -> float:
    if attempt.failed_s is not None:
        return attempt.failed_s
    return next_attempt.sent_s if next_attempt is not None else record.ended_s


def _context(span: Span, span_id: int) -> SpanContext:
    state = TraceState.from_header([span.tracestate.decode("latin-1")]) if span.tracestate else None
    return SpanContext(span.trace_id, span_id, is_remote=False, trace_flags=_SAMPLED, trace_state=state)


def _at_ns(record: Record, offset_s: float) -> int:
    return round((record.received_unix_s + offset_s) * 1e9)
