"""The bytes of the gateway's own responses: JSON documents, and errors in OpenAI's or Anthropic's shape."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

__all__ = (
    "ErrorStyle",
    "Refusal",
    "anthropic_error_document",
    "bytes_answer",
    "error_document",
    "error_event",
    "json_answer",
    "status_line",
)

_STATUS_LINES = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorStyle(enum.Enum):
    """The shape of errors that a client expects, by the path of its request."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"  # /v1/messages and what is below it


def status_line(status: int) -> bytes:
    """Return the first line of a response with its line end."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status


def json_answer(
    status: int,
    document: Any,
    *,
    request_id: str = "",
    close: bool = False,
    headers: Sequence[tuple[str, str]] = (),
    without_body: bool = False,
    extra: bytes = b"",
) -> bytes:
    """Return a whole HTTP response.

    document: None sends no body; without_body: send only the headers, as HEAD requests; extra: whole header lines
    """
    body = b"" if document is None else orjson.dumps(document)
    kind = b"content-type: application/json\r\n" if body else b""
    lines = [status_line(status), kind + b"content-length: %d\r\n" % len(body)]
    if request_id:
        lines.append(b"x-request-id: %b\r\n" % request_id.encode())
    if close:
        lines.append(b"connection: close\r\n")
    lines.extend(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in headers)
    lines.append(extra + b"\r\n")
    if not without_body:
        lines.append(body)
    return b"".join(lines)


def bytes_answer(
    status: int, body: bytes, content_type: str, *, request_id: str, close: bool, without_body: bool = False
) -> bytes:
    """Return a whole HTTP response whose body is not JSON."""
    lines = [
        status_line(status),
        b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type.encode(), len(body)),
        b"x-request-id: %b\r\n" % request_id.encode(),
        b"connection: close\r\n\r\n" if close else b"\r\n",
    ]
    return b"".join(lines if without_body else [*lines, body])


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The error for a request. ``message`` says what was wrong and what to do."""

    status: int
    message: str
    code: str  # a short word that programs can compare
    param: str | None = None  # the field of the body that is at fault
    retry_after_s: int | None = None  # time after which another try may help; None where it will not
    retry_helps: bool = True  # False: the client's own tries within a minute would fail
    close: bool = False  # the rest of the request was not read, so the connection cannot be used further
    allow: str = ""  # methods that the path has

    def encode(
        self,
        *,
        request_id: str,
        close: bool,
        without_body: bool = False,
        style: ErrorStyle = ErrorStyle.OPENAI,
        extra: bytes = b"",
    ) -> bytes:
        """Return the whole HTTP response. extra: whole header lines."""
        headers = [("retry-after", str(self.retry_after_s))] if self.retry_after_s is not None else []
        if not self.retry_helps:
            headers.append(("x-should-retry", "false"))
        if self.allow:
            headers.append(("allow", self.allow))
        if style is ErrorStyle.ANTHROPIC:
            document = anthropic_error_document(self.status, self.message, request_id)
        else:
            document = error_document(self.status, self.message, self.code, self.param)
        return json_answer(
            self.status,
            document,
            request_id=request_id,
            close=close or self.close,
            headers=headers,
            without_body=without_body,
            extra=extra,
        )


def error_document(status: int, message: str, code: str, param: str | None = None) -> dict[str, Any]:
    """Return OpenAI's error object."""
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_error_document(status: int, message: str, request_id: str) -> dict[str, Any]:
    """Return Anthropic's error object."""
    kind = _ANTHROPIC_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def error_event(message: str, code: str, *, style: ErrorStyle = ErrorStyle.OPENAI, request_id: str = "") -> bytes:
    """Return the server-sent event that reports an error inside a running stream."""
    if style is ErrorStyle.ANTHROPIC:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(anthropic_error_document(500, message, request_id))
    return b"data: %b\n\n" % orjson.dumps(error_document(500, message, code))
