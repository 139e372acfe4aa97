"""The API: which path and method gets which answer, from the gateway itself or from an engine."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import unquote

from longboat.core.policy import TenantPolicy
from longboat.gateway.admin.admin_api import is_admin_path
from longboat.gateway.api.apis import APIS, KNOWN_PATHS, RESPONSES, Api, style_of
from longboat.gateway.api.body import BodyError, Facts, read_facts
from longboat.gateway.api.multipart import Form, read_form
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import ErrorStyle, Refusal, json_answer
from longboat.gateway.requests.model_request import Call
from longboat.gateway.requests.state import GatewayState
from longboat.gateway.resume.session import come_back
from longboat.routing.route_rules import RequestFacts

__all__ = ("COMPLETION_ESTIMATE_TOKENS", "MAX_COST_TOKENS", "Later", "decide", "error_style", "presented_key")

_LOCAL = ("/v1/models", "/livez", "/readyz")
_RESPONSE_PATH = b"/v1/responses/"
COMPLETION_ESTIMATE_TOKENS = 256
"""What an answer is taken to cost until it is known, where the client names no limit."""

MAX_COST_TOKENS = 1 << 40
"""What a request is taken to cost at most, so that counts of 64 bits hold many such."""


class Later:
    """The answer needs others: the admin API's, or a response that another worker of the node may know.

    response_id: empty for the admin API; call: what goes on with the owner of that response
    """

    __slots__ = ("call", "response_id")

    def __init__(self, call: Call | None = None, response_id: str = "") -> None:
        self.call = call
        self.response_id = response_id


def decide(state: GatewayState, request: Request, *, close: bool) -> Call | Later | Refusal | bytes:
    """What to do with a complete request. Bytes are a whole answer. close: the connection ends with this answer."""
    if request.refusal is not None:
        return request.refusal
    path = request.url.partition(b"?")[0]
    api = APIS.get(path)
    if api is not None:
        return _call(state, request, api, path)
    if path.startswith(_RESPONSE_PATH):
        return _stored_response(state, request, path)
    text = path.decode("latin-1")
    if is_admin_path(text):
        return Later()
    if text not in _LOCAL and not text.startswith("/v1/models/"):
        return error_responses.no_such_path(text, KNOWN_PATHS)
    if request.method not in ("GET", "HEAD"):
        return error_responses.method_not_allowed(request.method, "GET, HEAD")
    return _local_answer(state, request, text, close=close)


def presented_key(noted: dict[bytes, bytes]) -> bytes:
    """The key that came with a request: a bearer token, or as Anthropic's and Azure's clients send it."""
    value = noted.get(b"authorization")
    if value is not None:
        scheme, _, key = value.partition(b" ")
        if scheme.lower() == b"bearer":
            return key.strip()
    return (noted.get(b"x-api-key") or noted.get(b"api-key") or b"").strip()


def _tenant(state: GatewayState, request: Request) -> TenantPolicy | Refusal:
    keys = state.live.keys
    if not keys.asks:
        return keys.anonymous
    key = presented_key(request.noted)
    now_s = time.time()
    tenant = keys.tenant_of(key, now_s) if key else None
    if tenant is None:
        return error_responses.no_key() if not key else error_responses.wrong_key(expired=keys.has_expired(key, now_s))
    return tenant


def _call(state: GatewayState, request: Request, api: Api, path: bytes) -> Call | Later | Refusal:
    if request.method != "POST":
        return error_responses.method_not_allowed(request.method, "POST")
    if state.stopping:
        return error_responses.stopping()
    tenant = _tenant(state, request)
    if isinstance(tenant, Refusal):
        return tenant
    if b"content-length" not in request.noted and b"transfer-encoding" not in request.noted:
        return error_responses.length_required()
    if coding := request.noted.get(b"content-encoding"):
        return error_responses.coded_body(coding.decode("latin-1"))
    try:
        facts = _facts(state, request, api)
    except BodyError as error:
        return _bad_body(state, error)
    found = _pools(state, request, tenant, facts)
    if isinstance(found, Refusal):
        return found
    pools, why = found
    if (refusal := _forbidden(state, tenant, facts, pools)) is not None:
        return refusal
    return _open_call(state, request, api, path, tenant, facts, pools, why)


def _facts(state: GatewayState, request: Request, api: Api) -> Facts | Form:
    body = request.body()
    if api.body is None:
        return read_form(body, request.noted.get(b"content-type", b""), refuse_fleet_fields=True)
    return read_facts(body, api.body, refuse_fleet_fields=True, may_salt=not state.live.keys.asks)


def _bad_body(state: GatewayState, error: BodyError) -> Refusal:
    if error.code == "model_missing":
        return error_responses.model_missing(state.live.rules.known_names())
    return error_responses.bad_body(error)


def _pools(
    state: GatewayState, request: Request, tenant: TenantPolicy, facts: Facts | Form
) -> tuple[tuple[str, ...], str] | Refusal:
    """The models to try, and why these."""
    if not state.table.known:
        return error_responses.no_table()
    rules, name = state.live.rules, facts.model
    if not rules.needs_facts:
        if state.table.pool(name) is None:
            return error_responses.unknown_model(name, _visible(state, tenant))
        return (name,), ""
    found = rules.resolve(_request_facts(state, request, tenant, facts), request.request_id)
    if found is None:
        return error_responses.unknown_model(name, _visible(state, tenant))
    return found.pools, found.why


def _request_facts(state: GatewayState, request: Request, tenant: TenantPolicy, facts: Facts | Form) -> RequestFacts:
    rules = state.live.rules
    headers = request.headers_named(rules.header_names) if rules.header_names else {}
    values = facts.fields if isinstance(facts, Form) else facts.document
    fields = {name: _as_text(values[name]) for name in rules.field_names if name in values}
    prompt = facts.num_prompt_tokens_estimate
    return RequestFacts(
        model=facts.model,
        tenant=tenant.name,
        tags=tenant.tags,
        headers=headers,
        fields=fields,
        prompt_tokens=prompt,
        context_tokens=prompt + (_max_tokens(facts) or 0),
        user=facts.user,
    )


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _max_tokens(facts: Facts | Form) -> int | None:
    """Never below 0: an engine refuses such a number, but before that it must not make the request cheap."""
    if isinstance(facts, Form) or facts.max_tokens is None:
        return None
    return max(0, facts.max_tokens)


def _forbidden(
    state: GatewayState, tenant: TenantPolicy, facts: Facts | Form, pools: tuple[str, ...]
) -> Refusal | None:
    if tenant.models is not None and facts.model not in tenant.models and pools[0] not in tenant.models:
        return error_responses.model_not_allowed(facts.model, _visible(state, tenant))
    limit = tenant.max_context_tokens
    if limit is not None:
        asked = facts.num_prompt_tokens_estimate + (_max_tokens(facts) or 0)
        if asked > limit:
            return error_responses.context_too_long(asked, limit)
    return None


def _open_call(
    state: GatewayState,
    request: Request,
    api: Api,
    path: bytes,
    tenant: TenantPolicy,
    facts: Facts | Form,
    pools: tuple[str, ...],
    why: str,
) -> Call | Later | Refusal:
    query = request.url[len(path) :]
    cost = facts.num_prompt_tokens_estimate
    if api.weighs_completion:
        n = 1 if isinstance(facts, Form) else facts.n
        cost += n * (_max_tokens(facts) or COMPLETION_ESTIMATE_TOKENS)
    call = Call(
        request,
        api,
        path=path + query,
        tenant=tenant,
        pools=pools,
        requested=facts.model,
        body=request.body(),
        facts=facts,
        why=why,
        cost_tokens=min(cost, MAX_COST_TOKENS),
    )
    call.salt = state.live.cache_salt(tenant)
    deadline = _deadline_s(request)
    if isinstance(deadline, Refusal):
        return deadline
    call.deadline_s = deadline
    if b"x-longboat-resume" in request.noted:
        return come_back(call, state.live.policy.salt, time.time())
    if api is RESPONSES and isinstance(facts, Facts):
        previous = facts.document.get("previous_response_id")
        if isinstance(previous, str) and previous:
            return _at_owner(state, call, previous)
    return call


def _deadline_s(request: Request) -> float | Refusal | None:
    """On the monotonic clock."""
    noted = request.noted
    try:
        if (value := noted.get(b"x-request-timeout")) is not None:
            seconds = float(value) - (time.monotonic() - request.received_s)
        elif (value := noted.get(b"x-request-deadline")) is not None:
            seconds = float(value) - time.time()
        else:
            return None
    except ValueError:
        return error_responses.bad_deadline(value or b"")
    if not seconds < 1e9:
        return error_responses.bad_deadline(value)
    return error_responses.deadline_passed() if seconds <= 0 else time.monotonic() + seconds


# responses that engines keep


def _stored_response(state: GatewayState, request: Request, path: bytes) -> Call | Later | Refusal:
    """GET, DELETE /v1/responses/{id}, GET …/input_items, POST …/cancel: only the replica that made it can answer."""
    tenant = _tenant(state, request)
    if isinstance(tenant, Refusal):
        return tenant
    response_id, _, action = path[len(_RESPONSE_PATH) :].decode("latin-1").partition("/")
    allowed = {"": ("GET", "DELETE"), "cancel": ("POST",), "input_items": ("GET",)}.get(action)
    if allowed is None or not response_id:
        return error_responses.no_such_path(path.decode("latin-1"), KNOWN_PATHS)
    if request.method not in allowed:
        return error_responses.method_not_allowed(request.method, ", ".join(allowed))
    call = Call(
        request,
        RESPONSES,
        path=request.url,
        tenant=tenant,
        pools=("",),
        requested="",
        body=request.body(),
        why=f"it keeps {response_id[:80]}",
        method=request.method,
    )
    return _at_owner(state, call, response_id)


def _at_owner(state: GatewayState, call: Call, response_id: str) -> Call | Later:
    owner = state.owners.of(response_id, call.tenant.name)
    if owner is None:
        return Later(call, response_id)
    call.pin(model=owner.model, key=owner.key)
    return call


# what the gateway answers itself


def _local_answer(state: GatewayState, request: Request, path: str, *, close: bool) -> bytes | Refusal:
    if path == "/livez":
        answer: tuple[int, dict[str, Any]] | Refusal = (200, {"alive": True})
    elif path == "/readyz":
        reason = state.unready_reason()
        answer = (503, {"ready": False, "reason": reason}) if reason else (200, {"ready": True})
    else:
        answer = _models(state, request, path)
    if isinstance(answer, Refusal):
        return answer
    return json_answer(
        answer[0],
        answer[1],
        request_id=request.request_id,
        close=close,
        without_body=request.method == "HEAD",
        extra=request.extra_lines,
    )


def _models(state: GatewayState, request: Request, path: str) -> tuple[int, dict[str, Any]] | Refusal:
    tenant = _tenant(state, request)
    if isinstance(tenant, Refusal):
        return tenant
    names = _visible(state, tenant)
    if path == "/v1/models":
        return 200, {"object": "list", "data": [_model(state, name) for name in names]}
    name = unquote(path.removeprefix("/v1/models/"))
    return (200, _model(state, name)) if name in names else error_responses.unknown_model(name, names)


def _visible(state: GatewayState, tenant: TenantPolicy) -> tuple[str, ...]:
    """Models and aliases that the tenant may ask for, the table's order first."""
    models = state.table.models
    names = (*models, *(name for name in state.live.rules.known_names() if name not in models))
    return names if tenant.models is None else tuple(name for name in names if name in tenant.models)


def _model(state: GatewayState, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": state.created_s, "owned_by": "longboat"}


def error_style(request: Request) -> ErrorStyle:
    """Whose error shape the request's client expects."""
    return style_of(request.url)
