"""Errors of engines that clients could not read, or that are not theirs: what the gateway says instead. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from longboat.gateway.api.prompt_size import TOO_LONG
from longboat.gateway.http.responses import ErrorStyle, Refusal

if TYPE_CHECKING:
    from longboat.gateway.calls.model_request import Call

__all__ = ("engine_refusal", "late_refusal")

_LACKING = frozenset(("not found", "method not allowed", "file not found"))
"""How the servers of engines report a path that they do not have; a missing model or response reads otherwise."""

_SWITCHED_OFF = "--enable-scale-out"

_TOO_LONG = re.compile(TOO_LONG)
_ANTHROPICS = "prompt is too long"
"""What Anthropic's API says of such a prompt, by which clients know it."""
_ANTHROPIC_TYPES = ("invalid_request_error", "not_found_error")
_CONTEXT = "context_length_exceeded"


def engine_refusal(call: Call, status: int, body: bytes) -> Refusal | None:
    """Return what the client gets instead of an engine's error; None passes the engine's own error on.

    body: the whole body of a response with this status
    """
    if status in (401, 403):
        return _not_offered(call) if _SWITCHED_OFF.encode() in body else _locked_out(call, status)
    if status in (404, 405) and _message(body).strip(". ").lower() in _LACKING:
        return _not_offered(call)
    return _bad_request(call.api.style, status, body) if status in (400, 404, 422) else None


def late_refusal(status: int, body: bytes, retry_after_s: int | None) -> Refusal:
    """Return what a client whose stream has begun gets of an answer other than a stream, such as an engine's error.

    retry_after_s: as the engine's head says, which the client does not get
    """
    message = _message(body) or f"The engine answered {status} where a stream was expected."
    if retry_after_s is not None:
        message = f"{message.rstrip(' .')}. Try again in {retry_after_s} s."
    return Refusal(status=status if status >= 400 else 502, message=message, code="engine_refused")


def _bad_request(style: ErrorStyle, status: int, body: bytes) -> Refusal | None:
    """Return an error of the request as clients of its API know it; None where the engine says it in this way."""
    document, message = _document(body), _message(body)
    error = _error(document)
    if not message or not error:
        return None
    kind, code, param = error.get("type"), error.get("code"), error.get("param")
    is_too_long = _TOO_LONG.search(message) is not None
    if style is ErrorStyle.ANTHROPIC:
        if is_too_long and _ANTHROPICS not in message:
            message = f"{_ANTHROPICS}: {message}"
        elif document.get("type") == "error" and kind in _ANTHROPIC_TYPES:
            return None
    elif error is not document and (not is_too_long or code == _CONTEXT):
        return None
    code = _CONTEXT if is_too_long else "engine_refused"
    return Refusal(status=status, message=message, code=code, param=param if type(param) is str else None)


def _message(body: bytes) -> str:
    """Return the message of an error in FastAPI's shape or an API's; empty for any other body."""
    document = _document(body)
    found = _error(document).get("message", document.get("detail"))
    return found if type(found) is str else ""


def _error(document: dict[str, Any]) -> dict[str, Any]:
    """Return the error in a document. SGLang's has no object around it: OpenAI's client in JavaScript reads nothing."""
    error = document if document.get("object") == "error" else document.get("error")
    return error if type(error) is dict else {}


def _document(body: bytes) -> dict[str, Any]:
    """Return a body that is a JSON object; an empty one for any other body."""
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if type(document) is dict else {}


def _not_offered(call: Call) -> Refusal:
    path = call.path.partition(b"?")[0][:100].decode("latin-1")
    what = path if call.method == "POST" else f"{call.method} {path}"
    message = f"The model {call.pool!r} does not offer {what}: its engine has no such path. {call.api.needs}."
    return Refusal(status=404, message=message, code="path_not_offered", param="model")


def _locked_out(call: Call, status: int) -> Refusal:
    message = (
        f"The engine of {call.pool!r} refused the gateway's request with status {status}. Your own key is not the "
        "reason: the fleet's operator must give the gateway this engine's API key."
    )
    return Refusal(status=502, message=message, code="engine_refused_gateway")
