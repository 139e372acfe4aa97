"""Finished requests as OpenTelemetry spans, sent by OTLP over HTTP in its binary encoding.

Spans are encoded in C, and not by the library, which takes 80 us of processor time for a request. Field numbers:
opentelemetry/proto/trace/v1/trace.proto of opentelemetry-proto 1.x.
"""

from __future__ import annotations

import http.client
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from longboat.gateway.native.span_encoding import span_field
from longboat.gateway.records.spans import FinishedSpan

__all__ = ("OtlpExport", "encoded", "traces_url")

_EXPORT_TIMEOUT_S = 5.0
_PAUSES_S = (0.5, 1.0)  # before each further try
_TRY_AGAIN = frozenset((429, 502, 503, 504))
_SERVER: Final = 2
_CLIENT: Final = 3
_FLAGS: Final = 0x1 | 0x100  # a span is sampled, and it is known whether its parent is remote
_REMOTE: Final = 0x200
_STORED: Final = "/v1/responses/"


class _Staying(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would lose the spans, and take the headers' secrets elsewhere."""

    def redirect_request(self, *_: object) -> None:
        return None


class OtlpExport:
    """Sends spans to one collector, with the headers in the variable OTEL_EXPORTER_OTLP_HEADERS."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        self._url = traces_url(endpoint)
        self._resource = {"service.name": "longboat-gateway", **resource}
        self._headers = {"content-type": "application/x-protobuf", **_own_headers()}
        self._stopping = threading.Event()
        self._opener = urllib.request.build_opener(_Staying)

    def export(self, finished: Sequence[FinishedSpan]) -> str:
        """Send a batch; try again where the collector asks for it. Return why it did not arrive, or an empty text."""
        body = encoded(finished, self._resource)
        why = ""
        for pause_s in (*_PAUSES_S, 0.0):
            status, why = self._post(body)
            if status not in _TRY_AGAIN or not pause_s or self._stopping.wait(pause_s):
                break
        return why

    def shutdown(self) -> None:
        """Try no further."""
        self._stopping.set()

    def _post(self, body: bytes) -> tuple[int, str]:
        """Return the status of the answer, 0 where there is none, and what was wrong."""
        # The fleet file takes http:// and https:// addresses only.
        request = urllib.request.Request(self._url, body, self._headers, method="POST")  # noqa: S310
        try:
            with self._opener.open(request, timeout=_EXPORT_TIMEOUT_S) as answer:
                return int(answer.status), ""
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, f"it answers {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = getattr(error, "reason", error)  # URLError holds what happened
            return 0, getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def traces_url(endpoint: str) -> str:
    """Return where spans are posted: the endpoint, with ``/v1/traces`` where it has no path."""
    return endpoint.rstrip("/") + "/v1/traces" if urlsplit(endpoint).path in ("", "/") else endpoint


def _own_headers() -> dict[str, str]:
    text = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {unquote(name.strip()).lower(): unquote(value.strip()) for name, _, value in pairs}


def encoded(finished: Sequence[FinishedSpan], resource: Mapping[str, str]) -> bytes:
    """Return an ExportTraceServiceRequest."""
    spans: list[bytes] = []
    for item in finished:
        _add_spans(spans, item)
    scope = _field(1, _field(1, b"longboat.gateway"))
    about = b"".join([_field(1, _text(1, name) + _field(2, _text(1, value))) for name, value in resource.items()])
    return _field(1, _field(1, about) + _field(2, scope + b"".join(spans)))


def _add_spans(spans: list[bytes], finished: FinishedSpan) -> None:
    """Add the request's own span, and one for each sending to a replica."""
    span, record = finished
    (  # unpacked at once, because every traced request pays for this
        request_id, tenant, path, model, pool, reason, received_s, routed_s, queued_s, granted_s, attempts,
        first_byte_s, ended_s, status, outcome, code, _, prompt_tokens, completion_tokens, cached_tokens, _, _,
    ) = record  # fmt: skip
    trace_id, parent_id, state = span.trace_id.to_bytes(16, "big"), span.parent_id, span.tracestate
    values = (
        span.method, path, status, model, pool, prompt_tokens, completion_tokens, cached_tokens, request_id, tenant,
        (attempts[-1].replica or None) if attempts else None, reason or None, outcome, code or None,
    )  # fmt: skip
    has_failed = status >= 500 or outcome in ("broken", "engine_error")
    own = span_field(
        trace_id, span.span_id, parent_id, state, f"{span.method} {_route(path)}", _SERVER,
        _FLAGS | _REMOTE if parent_id else _FLAGS, received_s, (0.0, ended_s), _OF_REQUEST, values,
        (routed_s, queued_s, granted_s, first_byte_s), (code or outcome) if has_failed else "",
    )  # fmt: skip
    spans.append(own)
    for at, attempt_id in enumerate(span.attempt_ids[: len(attempts)]):
        replica, sent_s, failure, failed_s, _ = attempts[at]
        if failed_s is None:
            failed_s = attempts[at + 1].sent_s if at + 1 < len(attempts) else ended_s
        sending = span_field(
            trace_id, attempt_id, span.span_id, state, f"send {pool or model}", _CLIENT, _FLAGS, received_s,
            (sent_s, failed_s), _OF_ATTEMPT, (replica, at + 1), (), failure,
        )  # fmt: skip
        spans.append(sending)


def _route(path: str) -> str:
    """Return the path without the id of a stored response: names of spans are few."""
    start, found, rest = path.partition(_STORED)
    return f"{start}{found}{{id}}{''.join(rest.partition('/')[1:])}" if found else path


# the encoding of what stands once in an export: https://protobuf.dev/programming-guides/encoding/


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(field: int, value: bytes) -> bytes:
    """Return bytes, a text or a message; field: below 16"""
    return bytes((field << 3 | 2,)) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _field(field, value.encode("utf-8", "replace"))


_ATTRIBUTES: Final = (
    "http.request.method", "url.path", "http.response.status_code", "gen_ai.request.model", "gen_ai.response.model",
    "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "longboat.cached_tokens", "longboat.request_id",
    "longboat.tenant", "longboat.replica", "longboat.reason", "longboat.outcome", "error.type",
)  # fmt: skip
"""Names of HTTP's and of generative AI's semantic conventions, and our own."""

_EVENTS: Final = ("routed", "queued", "granted", "first_byte")


_OF_REQUEST: Final = (
    tuple([_text(1, name) for name in _ATTRIBUTES]),
    tuple([_text(2, name) for name in _EVENTS]),
)
_OF_ATTEMPT: Final[tuple[tuple[bytes, ...], tuple[bytes, ...]]] = (
    (_text(1, "longboat.replica"), _text(1, "longboat.attempt")),
    (),
)
