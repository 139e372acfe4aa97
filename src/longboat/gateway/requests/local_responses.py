"""The responses that the gateway gives without an engine: its health, and the models that it serves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote

from longboat import __version__
from longboat.core.policy import TenantPolicy
from longboat.gateway.api.apis import style_of
from longboat.gateway.api.openapi import openapi_document
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import ErrorStyle, Refusal, json_answer

__all__ = ("is_local_path", "local_answer", "may_use", "model_in_query", "visible_models")

_LOCAL = frozenset(("/v1/models", "/health", "/ping", "/livez", "/readyz", "/version", "/openapi.json"))
_MODEL_PREFIX = "/v1/models/"

FindTenant = Callable[[GatewayState, Request], TenantPolicy | Refusal]
"""Returns the tenant that a request's key belongs to."""


def is_local_path(path: str) -> bool:
    """Return whether :func:`local_answer` handles this path."""
    return path in _LOCAL or path.startswith(_MODEL_PREFIX)


def local_answer(
    state: GatewayState, request: Request, path: str, find_tenant: FindTenant, *, close: bool
) -> bytes | Refusal:
    """Return the whole response to a request whose path is local."""
    allowed = ("GET", "HEAD", "POST") if path == "/ping" else ("GET", "HEAD")
    if request.method not in allowed:
        return error_responses.method_not_allowed(request.method, ", ".join(allowed))
    answer = _document(state, request, path, find_tenant)
    if isinstance(answer, Refusal):
        return answer
    status, document = answer
    return json_answer(
        status,
        document,
        request_id=request.request_id,
        close=close,
        without_body=request.method == "HEAD",
        extra=request.extra_lines,
    )


def _document(
    state: GatewayState, request: Request, path: str, find_tenant: FindTenant
) -> tuple[int, dict[str, Any] | None] | Refusal:
    """Return status and JSON document of a local response; None for one without a body."""
    reason = state.unready_reason()
    match path:
        case "/health" | "/ping":  # as vLLM does, so that its probes and routers work
            return (503 if reason else 200), None
        case "/livez":
            return 200, {"alive": True}
        case "/readyz":
            return (503, {"ready": False, "reason": reason}) if reason else (200, {"ready": True})
        case "/version":
            return 200, {"version": __version__}
        case "/openapi.json":
            return 200, openapi_document()
    tenant = find_tenant(state, request)
    if isinstance(tenant, Refusal):
        return tenant
    return _models(state, tenant, path, both=style_of(request) is ErrorStyle.ANTHROPIC)


def visible_models(state: GatewayState, tenant: TenantPolicy) -> tuple[str, ...]:
    """Return the models and aliases that the tenant may use, in the table's order and then the aliases."""
    models = state.table.names
    names = (*models, *(name for name in state.live.rules.known_names() if name not in models))
    return tuple(name for name in names if may_use(state, tenant, name))


def may_use(state: GatewayState, tenant: TenantPolicy, name: str) -> bool:
    """Return whether the tenant may ask for a model, an alias or an adapter by this name."""
    owners = state.live.rules.owners.get(name)
    if owners is not None:
        return tenant.name in owners
    return tenant.models is None or name in tenant.models or state.table.adapted_by(name) in tenant.models


def model_in_query(target: bytes, names: tuple[str, ...]) -> str | None:
    """Return the model that ``?model=NAME`` names, or the only one of ``names``; None where neither is there."""
    given = parse_qs(target.partition(b"?")[2].decode("latin-1")).get("model")
    if given:
        return given[-1]
    return names[0] if len(names) == 1 else None


def _models(
    state: GatewayState, tenant: TenantPolicy, path: str, *, both: bool
) -> tuple[int, dict[str, Any]] | Refusal:
    """Return the models, or one. both: with Anthropic's fields beside OpenAI's"""
    names = visible_models(state, tenant)
    if path == "/v1/models":
        ends: dict[str, Any] = {"has_more": False, "first_id": None, "last_id": None}
        if names:
            ends |= {"first_id": names[0], "last_id": names[-1]}
        data = [_model(state, name, both=both) for name in names]
        return 200, {"object": "list", "data": data, **(ends if both else {})}
    name = unquote(path.removeprefix(_MODEL_PREFIX))
    return (200, _model(state, name, both=both)) if name in names else error_responses.unknown_model(name, names)


def _model(state: GatewayState, name: str, *, both: bool) -> dict[str, Any]:
    card: dict[str, Any] = {"id": name, "object": "model", "created": state.created_s, "owned_by": "longboat"}
    if both:
        at = datetime.fromtimestamp(state.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        card |= {"type": "model", "display_name": name, "created_at": at}
    if context_tokens := _context_tokens(state, name):
        card["max_model_len"] = context_tokens  # the name that vLLM and SGLang give it
    return {**card, "root": name, "parent": state.table.adapted_by(name) or None}


def _context_tokens(state: GatewayState, name: str) -> int:
    """Return the tokens that every replica behind the name takes; 0 where no engine says it."""
    pools = (state.table.pool(model) for model in state.live.rules.behind(name))
    endpoints = [u.endpoint for pool in pools if pool is not None for u in pool.upstreams]
    return min((e.context_tokens for e in endpoints if e is not None and e.context_tokens), default=0)
