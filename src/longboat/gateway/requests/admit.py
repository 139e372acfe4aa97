"""Decides about a complete request: its head's plan, its body and the policy make a call, an answer, or a question."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from longboat.gateway.admin.admin_api import is_admin_path
from longboat.gateway.api.apis import APIS, RESPONSES, TOKENIZER_INFO
from longboat.gateway.api.body import BodyError, read_body, top_fields
from longboat.gateway.api.body_fields import BodyKind, Facts
from longboat.gateway.api.media import form_refusal, holds_media, media_refusal
from longboat.gateway.api.paths import unknown_path, with_model
from longboat.gateway.api.tasks import lacks_path
from longboat.gateway.calls.head import HeadPlan, plan_head, tenant_of
from longboat.gateway.calls.model_request import Call
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import request_digest
from longboat.gateway.http.responses import Refusal
from longboat.gateway.http.strict_json import decode_object
from longboat.gateway.requests.local_responses import (
    is_local_path,
    local_answer,
    may_use,
    model_in_query,
    visible_models,
)
from longboat.gateway.resume.event_ids import Point
from longboat.gateway.resume.reconnect import ResumeToken

if TYPE_CHECKING:
    from longboat.core.policy import TenantPolicy
    from longboat.gateway.calls.head import KnownHead
    from longboat.gateway.calls.state import GatewayState
    from longboat.gateway.http.request import Request
    from longboat.routing.route_rules import Resolution

__all__ = ("Deferred", "admit", "chat_as")

_COMPLETION_ESTIMATE_TOKENS: Final = 256  # what an answer is taken to cost where the client names no limit
_NEVER_S: Final = math.inf  # when a key ends that has no end
_MAX_COST_TOKENS: Final = 1 << 40  # what a request is taken to cost at most, so that counts of 64 bits hold many such


class Deferred:
    """A request that this worker cannot decide alone: of the admin API, or about a response that another may know."""

    __slots__ = ("call", "response_id")

    def __init__(self, call: Call | None = None, response_id: str = "") -> None:
        self.call = call  # goes to the owner of the response; None for the admin API
        self.response_id = response_id  # empty for the admin API


def admit(
    state: GatewayState, request: Request, known: KnownHead | None, *, close: bool
) -> Call | Deferred | Refusal | bytes:
    """Return what to do with a complete request; bytes are a whole answer.

    known: its head, where that came before; close: the connection ends with this answer
    """
    plan = known.plan if known is not None else None
    if plan is None or plan.live is not state.live or (plan.until_s < _NEVER_S and time.time() >= plan.until_s):
        if request.refusal is not None:
            return request.refusal
        found = plan_head(state.live, request)
        if found is None:
            return _without_engine(state, request, close=close)
        if isinstance(found, Refusal):
            return found
        plan = found
        if known is not None:
            known.plan = plan
    if plan.response_id:
        why = f"it keeps {plan.response_id[:80]}"
        return _at_owner(state, _call(request, plan, pools=("",), body=request.body(), why=why), plan.response_id)
    if plan.api is TOKENIZER_INFO:
        return _tokenizer_info(state, request, plan)
    if state.stopping:
        return error_responses.stopping()
    return _admit(state, request, plan)


def _without_engine(state: GatewayState, request: Request, *, close: bool) -> Deferred | Refusal | bytes:
    path = request.url.partition(b"?")[0].decode("latin-1")
    if is_admin_path(path):
        return Deferred()
    if is_local_path(path):
        return local_answer(state, request, path, _tenant, close=close)
    return unknown_path(path)


def chat_as(state: GatewayState, request: Request, tenant: TenantPolicy) -> Call | Refusal:
    """Return what to do with a chat from the console's playground, in the name of this tenant.

    The engine gets none of the browser's headers.
    """
    if state.stopping:
        return error_responses.stopping()
    request.url, request.forwarded = b"/v1/chat/completions", [b"content-type: application/json\r\n"]
    found = _admit(state, request, HeadPlan(state.live, request, APIS[request.url], tenant, math.inf))
    assert not isinstance(found, Deferred)  # only the API of responses asks others
    return found


def _tenant(state: GatewayState, request: Request) -> TenantPolicy | Refusal:
    return tenant_of(state.live.keys, request)


def _admit(state: GatewayState, request: Request, plan: HeadPlan) -> Call | Deferred | Refusal:
    try:
        facts = _facts(state, request, plan)
    except BodyError as error:
        return _bad_body(state, error)
    body = request.body()
    if not state.table.known:
        return error_responses.no_table()
    route = _route(request, plan, facts, body)
    if route is None:
        return error_responses.unknown_model(facts.model, visible_models(state, plan.tenant))
    refusal = _forbidden(state, plan, facts, route) or _lacks_path(state, plan, route)
    if refusal is not None:
        return refusal
    if plan.media:
        by_media = _by_media(plan, facts, body, route)
        if isinstance(by_media, Refusal):
            return by_media
        route = by_media
    deadline = _deadline_s(request) if plan.has_deadline else None
    if isinstance(deadline, Refusal):
        return deadline
    call = _call(request, plan, pools=route.pools, body=body, why=route.why, facts=facts)
    call.deadline_s = deadline
    if route.overflow is not None:
        call.overflow = route.overflow
    if plan.comes_back:
        return _come_back(call, plan.live.policy.salt, time.time())
    if plan.api is RESPONSES:
        previous = facts.document.get("previous_response_id")
        if isinstance(previous, str) and previous:
            return _at_owner(state, call, previous)
    return call


def _facts(state: GatewayState, request: Request, plan: HeadPlan) -> Facts:
    """Read the body. A model that the path names replaces the body's, as Azure does it.

    A body that names none means the only model that the tenant may use, as engines with one model do it.
    """
    model = plan.deployment
    try:
        facts = _read(request, plan)
        if model is None or facts.model.encode() == model:
            return facts
    except BodyError as error:
        if error.code != "model_missing":
            raise
        names = visible_models(state, plan.tenant)
        if model is None and len(names) != 1:
            raise
        model = model or names[0].encode()
    request.pieces = [with_model(request, model, is_form=plan.api.body is BodyKind.FORM)]
    return _read(request, plan)


def _read(request: Request, plan: HeadPlan) -> Facts:
    return read_body(
        request.body(),
        plan.api.body,
        keyed=plan.keyed,
        content_type=plan.content_type,
        allowed=plan.allowed_fields,
    )


def _bad_body(state: GatewayState, error: BodyError) -> Refusal:
    if error.code == "model_missing":
        return error_responses.model_missing(state.live.rules.known_names())
    return error_responses.bad_body(error)


def _route(request: Request, plan: HeadPlan, facts: Facts, body: bytes) -> Resolution | None:
    """Return the models to try, and why these; None where the name leads to none."""
    routes = plan.routes
    return routes.resolve(
        facts.model,
        request.request_id,
        user=facts.user,
        prompt_tokens=facts.num_prompt_tokens_estimate,
        context_tokens=facts.context_tokens,
        fields=top_fields(body, facts, routes.field_names) if routes.field_names else None,
    )


def _forbidden(state: GatewayState, plan: HeadPlan, facts: Facts, route: Resolution) -> Refusal | None:
    names, limit = plan.models, plan.max_context_tokens
    if names is not None and facts.model not in names and not may_use(state, plan.tenant, route.pools[0]):
        return error_responses.model_not_allowed(facts.model, visible_models(state, plan.tenant))
    if limit is not None and facts.context_tokens > limit:
        return error_responses.context_too_long(facts.context_tokens, limit)
    return None


def _lacks_path(state: GatewayState, plan: HeadPlan, route: Resolution) -> Refusal | None:
    """Return the refusal where the model is for another task; the fleet file gives fallbacks of the same one."""
    tasks, model = plan.tasks, route.pools[0]
    if model not in tasks or tasks[model] in plan.api.tasks:
        return None
    path = plan.path.partition(b"?")[0].decode("latin-1")
    return lacks_path(model, path, plan.api, tasks, visible_models(state, plan.tenant))


def _by_media(plan: HeadPlan, facts: Facts, body: bytes, route: Resolution) -> Resolution | Refusal:
    """Return the models that may have a request's images, sounds or videos; why the first choice may not."""
    rules = plan.media
    ruled = [model for model in route.pools if model in rules]
    if facts.form is not None:
        refusals = {model: form_refusal(facts.form.file_bytes, rules[model]) for model in ruled}
    elif ruled and (facts.document or holds_media(body) or any([rules[model].in_texts for model in ruled])):
        document = facts.document or decode_object(body)
        refusals = {model: media_refusal(document, rules[model]) for model in ruled}
    else:
        return route
    if refusal := refusals.get(route.pools[0]):
        return refusal
    return route.keeping(lambda model: refusals.get(model) is None) if any(refusals.values()) else route


def _call(
    request: Request,
    plan: HeadPlan,
    *,
    pools: tuple[str, ...],
    body: bytes,
    why: str,
    facts: Facts | None = None,
) -> Call:
    cost = 0
    if facts is not None:
        cost = facts.num_prompt_tokens_estimate
        if plan.api.weighs_completion:
            cost += facts.n * (max(0, facts.max_tokens or 0) or _COMPLETION_ESTIMATE_TOKENS)
    call = Call(
        request,
        plan.api,
        path=plan.path,
        tenant=plan.tenant,
        pools=pools,
        requested=facts.model if facts is not None else "",
        body=body,
        facts=facts,
        why=why,
        method=plan.method,
        cost_tokens=min(cost, _MAX_COST_TOKENS),
    )
    call.plan = plan
    call.salt = plan.salt
    return call


def _deadline_s(request: Request) -> float | Refusal | None:
    """Return the time, on the monotonic clock, after which the client does not wait for the answer."""
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


def _tokenizer_info(state: GatewayState, request: Request, plan: HeadPlan) -> Call | Refusal:
    """GET /tokenizer_info?model=NAME: any replica of that model can tell; one model needs no name."""
    names = visible_models(state, plan.tenant)
    name = model_in_query(request.url, names)
    if name is None:
        return error_responses.name_a_model(names)
    route = plan.routes.resolve(name, request.request_id)
    if name not in names or route is None:
        return error_responses.unknown_model(name, names)
    call = _call(request, plan, pools=route.pools, body=b"", why=route.why)
    call.requested = name
    return call


def _at_owner(state: GatewayState, call: Call, response_id: str) -> Call | Deferred:
    """Send a request to the replica that keeps this response, or find out first which one it is."""
    owner = state.owners.of(response_id, call.tenant.name)
    if owner is None:
        return Deferred(call, response_id)
    call.pin(model=owner.model, key=owner.key)
    return call


def _come_back(call: Call, secret: str, now_s: float) -> Call | Refusal:
    """Bind the call of a client that presents a resume token to what the token says."""
    noted, facts = call.request.noted, call.facts
    token = ResumeToken.decode(noted[b"x-longboat-resume"], secret, now_s)
    event_id = noted.get(b"last-event-id")
    point = Point.read(event_id) if event_id else Point(())  # the client has the head, and nothing else
    if token is None or point is None or token.request != request_digest(call.path, call.body):
        return error_responses.bad_resume()
    if type(facts) is not Facts or not facts.stream or len(point.places) not in (0, facts.n):
        return error_responses.bad_resume()
    call.pools, call.overflow = (token.pool,), None
    call.comes_back = (token, point)
    return call
