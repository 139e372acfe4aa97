"""The API: which path and method gets which answer, from the gateway itself or from an engine."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import orjson

from longboat.gateway import refusals
from longboat.gateway.answers import Refusal, json_answer
from longboat.gateway.request import Request
from longboat.gateway.state import GatewayState

__all__ = ("Forward", "decide")

_FORWARDED = {b"/v1/chat/completions", b"/v1/completions"}
_LOCAL = ("/v1/models", "/livez", "/readyz")
_KNOWN = (*sorted(path.decode() for path in _FORWARDED), *_LOCAL)


class Forward:
    """Send the request to an engine of ``model``."""

    __slots__ = ("body", "model", "path")

    def __init__(self, path: bytes, model: str, body: bytes) -> None:
        self.path = path
        self.model = model
        self.body = body


def decide(state: GatewayState, request: Request, *, close: bool) -> Forward | Refusal | bytes:
    """What to do with a complete request. Bytes are a whole answer. close: the connection ends with this answer."""
    if request.refusal is not None:
        return request.refusal
    path = request.url.partition(b"?")[0]
    if path in _FORWARDED:
        return _forward(state, request, path)
    text = path.decode("latin-1")
    if not (text in _LOCAL or text.startswith("/v1/models/")):
        return refusals.no_such_path(text, _KNOWN)
    if request.method not in ("GET", "HEAD"):
        return refusals.method_not_allowed(request.method, "GET, HEAD")
    answer = _local(state, text)
    if isinstance(answer, Refusal):
        return answer
    status, document = answer
    bare = request.method == "HEAD"
    return json_answer(status, document, request_id=request.request_id, close=close, without_body=bare)


def _forward(state: GatewayState, request: Request, path: bytes) -> Forward | Refusal:
    if request.method != "POST":
        return refusals.method_not_allowed(request.method, "POST")
    if state.stopping:
        return refusals.stopping()
    if b"content-length" not in request.noted and b"transfer-encoding" not in request.noted:
        return refusals.length_required()
    if coding := request.noted.get(b"content-encoding"):
        return refusals.coded_body(coding.decode("latin-1"))
    body = request.body()
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return refusals.bad_json(str(error))
    if not isinstance(document, dict):
        return refusals.bad_json(f"it is of type {type(document).__name__}")
    return _route(state, path, document.get("model"), body)


def _route(state: GatewayState, path: bytes, model: Any, body: bytes) -> Forward | Refusal:
    if not state.table.known:
        return refusals.no_table()
    if not isinstance(model, str) or not model:
        return refusals.model_missing(state.table.models)
    if state.table.endpoints(model) is None:
        return refusals.unknown_model(model, state.table.models)
    return Forward(path, model, body)


def _local(state: GatewayState, path: str) -> tuple[int, dict[str, Any]] | Refusal:
    if path == "/livez":
        return 200, {"alive": True}
    if path == "/readyz":
        reason = state.unready_reason()
        return (503, {"ready": False, "reason": reason}) if reason else (200, {"ready": True})
    if path == "/v1/models":
        return 200, {"object": "list", "data": [_model(state, name) for name in state.table.models]}
    name = unquote(path.removeprefix("/v1/models/"))
    if state.table.endpoints(name) is None:
        return refusals.unknown_model(name, state.table.models)
    return 200, _model(state, name)


def _model(state: GatewayState, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": state.created_s, "owned_by": "longboat"}
