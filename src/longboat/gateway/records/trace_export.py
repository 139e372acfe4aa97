"""Finished requests as OpenTelemetry spans, sent by OTLP over HTTP in its binary encoding.

The encoding is written here, for four messages of which each request makes two: the library's own takes 80 us of
processor time for a request. Field numbers: opentelemetry/proto/trace/v1/trace.proto of opentelemetry-proto 1.x.
"""

from __future__ import annotations

import functools
import http.client
import os
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from longboat.gateway.records.recent import Attempt, Record
from longboat.gateway.records.spans import FinishedSpan, Span

__all__ = ("OtlpExport", "encoded", "traces_url")

_EXPORT_TIMEOUT_S = 5.0
_PAUSES_S = (0.5, 1.0)  # before each further try
_TRY_AGAIN = frozenset((429, 502, 503, 504))
_SERVER, _CLIENT = 2, 3
_ERROR = 2
_SAMPLED, _KNOWN, _REMOTE = 0x1, 0x100, 0x200  # of a span's flags: whether it is known that its parent is remote
_INT64 = (1 << 64) - 1
_fixed64 = struct.Struct("<Q").pack
_fixed32 = struct.Struct("<I").pack


class OtlpExport:
    """Sends spans to one collector, with the headers in the variable OTEL_EXPORTER_OTLP_HEADERS."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        self._url = traces_url(endpoint)
        self._resource = {"service.name": "longboat-gateway", **resource}
        self._headers = {"content-type": "application/x-protobuf", **_own_headers()}
        self._stopping = threading.Event()

    def export(self, finished: Sequence[FinishedSpan]) -> bool:
        """Send a batch; try again where the collector asks for it."""
        body = encoded(finished, self._resource)
        for pause_s in (*_PAUSES_S, 0.0):
            status = self._post(body)
            if status not in _TRY_AGAIN or not pause_s or self._stopping.wait(pause_s):
                return 200 <= status < 300
        return False

    def shutdown(self) -> None:
        """Try no further."""
        self._stopping.set()

    def _post(self, body: bytes) -> int:
        """Return the status of the answer; 0 where there is none."""
        # The fleet file takes http:// and https:// addresses only.
        request = urllib.request.Request(self._url, body, self._headers, method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_EXPORT_TIMEOUT_S) as answer:  # noqa: S310
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except (OSError, http.client.HTTPException, ValueError):
            return 0


def traces_url(endpoint: str) -> str:
    """Return where spans are posted: the endpoint, with ``/v1/traces`` where it has no path."""
    return endpoint.rstrip("/") + "/v1/traces" if urlsplit(endpoint).path in ("", "/") else endpoint


def _own_headers() -> dict[str, str]:
    text = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {unquote(name.strip()).lower(): unquote(value.strip()) for name, _, value in pairs}


def encoded(finished: Sequence[FinishedSpan], resource: Mapping[str, str]) -> bytes:
    """Return an ExportTraceServiceRequest."""
    scope = _field(1, _field(1, b"longboat.gateway"))
    spans = b"".join([_field(2, span) for item in finished for span in _spans_of(item)])
    about = b"".join([_attribute(1, name, value) for name, value in resource.items()])
    return _field(1, _field(1, about) + _field(2, scope + spans))


def _spans_of(finished: FinishedSpan) -> Iterator[bytes]:
    """Yield the request's own span, and one for each sending to a replica."""
    span, record = finished
    yield _request_span(span, record)
    attempts = record.attempts
    for number, (attempt_id, attempt) in enumerate(zip(span.attempt_ids, attempts, strict=False), 1):
        next_attempt = attempts[number] if number < len(attempts) else None
        about = _attribute(9, "longboat.replica", attempt.replica) + _attribute(9, "longboat.attempt", number)
        yield _span(
            span,
            attempt_id,
            span.span_id,
            f"send {record.pool or record.model}",
            _CLIENT,
            (_at_ns(record, attempt.sent_s), _at_ns(record, _end_of(attempt, next_attempt, record))),
            about,
            attempt.failure,
        )


def _request_span(span: Span, record: Record) -> bytes:
    about = b"".join([_attribute(9, name, value) for name, value in _attributes(record) if value is not None])
    events = b"".join([_field(11, _time(1, at_ns) + _text(2, name)) for name, at_ns in _events(record)])
    times_ns = (_at_ns(record, 0.0), _at_ns(record, record.ended_s))
    error = (record.code or record.outcome) if _failed(record) else ""
    return _span(span, span.span_id, span.parent_id, f"POST {record.path}", _SERVER, times_ns, about + events, error)


def _span(
    span: Span, span_id: int, parent_id: int, name: str, kind: int, times_ns: tuple[int, int], about: bytes, error: str
) -> bytes:
    is_remote = kind == _SERVER and parent_id != 0
    flags = _SAMPLED | _KNOWN | (_REMOTE if is_remote else 0)
    return b"".join(
        (
            _field(1, span.trace_id.to_bytes(16, "big")),
            _field(2, span_id.to_bytes(8, "big")),
            _field(3, span.tracestate) if span.tracestate else b"",
            _field(4, parent_id.to_bytes(8, "big")) if parent_id else b"",
            _text(5, name),
            _number(6, kind),
            _time(7, times_ns[0]),
            _time(8, times_ns[1]),
            about,
            _field(15, _text(2, error) + _number(3, _ERROR)) if error else b"",
            b"\x85\x01" + _fixed32(flags),  # field 16
        )
    )


def _attributes(record: Record) -> tuple[tuple[str, str | int | None], ...]:
    """Names of HTTP's and of generative AI's semantic conventions, and our own."""
    return (
        ("http.request.method", "POST"),
        ("url.path", record.path),
        ("http.response.status_code", record.status),
        ("gen_ai.request.model", record.model),
        ("gen_ai.response.model", record.pool),
        ("gen_ai.usage.input_tokens", record.prompt_tokens),
        ("gen_ai.usage.output_tokens", record.completion_tokens),
        ("longboat.cached_tokens", record.cached_tokens),
        ("longboat.request_id", record.request_id),
        ("longboat.tenant", record.tenant),
        ("longboat.replica", record.replica or None),
        ("longboat.reason", record.reason or None),
        ("longboat.outcome", record.outcome),
        ("error.type", record.code or None),
    )


def _events(record: Record) -> Iterator[tuple[str, int]]:
    moments = (
        ("routed", record.routed_s),
        ("queued", record.queued_s),
        ("granted", record.granted_s),
        ("first_byte", record.first_byte_s),
    )
    for name, at_s in moments:
        if at_s is not None:
            yield name, _at_ns(record, at_s)


def _failed(record: Record) -> bool:
    return record.status >= 500 or record.outcome in ("broken", "engine_error")


def _end_of(attempt: Attempt, next_attempt: Attempt | None, record: Record) -> float:
    if attempt.failed_s is not None:
        return attempt.failed_s
    return next_attempt.sent_s if next_attempt is not None else record.ended_s


def _at_ns(record: Record, offset_s: float) -> int:
    return round((record.received_unix_s + offset_s) * 1e9)


# the encoding: https://protobuf.dev/programming-guides/encoding/


_TAGS = tuple(bytes((field << 3 | 2,)) for field in range(16))
_SMALL = tuple(bytes((number,)) for number in range(0x80))


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(field: int, value: bytes) -> bytes:
    """Return bytes, a text or a message; field: below 16"""
    return _TAGS[field] + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _field(field, value.encode("utf-8", "replace"))


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3,)) + _varint(value & _INT64)


def _time(field: int, value: int) -> bytes:
    return bytes((field << 3 | 1,)) + _fixed64(value)


def _attribute(field: int, name: str, value: str | int) -> bytes:
    told = _text(1, value) if isinstance(value, str) else _number(3, value)
    return _field(field, _name(name) + _field(2, told))


@functools.cache
def _name(name: str) -> bytes:
    return _text(1, name)
