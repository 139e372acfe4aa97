"""The short way into an ordinary chat or completion request: what its head decides is decided once for all like it.

Whatever is out of the ordinary (rules, fallbacks, remote counters, traces, a field that needs a look) is left to
``routes.decide``, which every request could take. Both come to the same call.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson

from longboat.gateway.api.apis import APIS, Api
from longboat.gateway.api.body import BodyKind, Facts
from longboat.gateway.http.request import path_text
from longboat.gateway.native.leaf_work import scan
from longboat.gateway.requests.dispatch import COMPLETION_ESTIMATE_TOKENS, MAX_COST_TOKENS, presented_key
from longboat.gateway.requests.model_request import Call

if TYPE_CHECKING:
    from longboat.core.policy import TenantPolicy
    from longboat.gateway.http.request import Request
    from longboat.gateway.limits.policy_view import LivePolicy
    from longboat.gateway.requests.head_cache import KnownHead
    from longboat.gateway.requests.state import GatewayState
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("Plan", "quick_call")

_MAX_UPSTREAMS = 1024
_NO_DOCUMENT: dict[str, object] = {}


class Plan:
    """What a known head decides under one policy.

    live: that policy; until_s: Unix time from which its key is none any more
    stream_start, whole_start: what goes before the first member of a body that is or is not to be a stream
    """

    __slots__ = (
        "_heads", "_lines", "api", "completions", "keyed", "live", "max_context_tokens", "models", "path",
        "path_text", "stream_start", "tenant", "until_s", "whole_start",
    )  # fmt: skip

    def __init__(
        self, live: LivePolicy, api: Api, path: bytes, tenant: TenantPolicy, until_s: float, lines: list[bytes]
    ) -> None:
        self.live = live
        self.api = api
        self.path = path
        self.path_text = path_text(path)
        self.tenant = tenant
        self.until_s = until_s
        self.completions = api.body is BodyKind.COMPLETIONS
        self.keyed = live.keys.asks
        self.models = tenant.models
        self.max_context_tokens = tenant.max_context_tokens
        salt = live.cache_salt(tenant)
        salted = b'"cache_salt":%b,' % orjson.dumps(salt) if salt is not None else b""
        self.whole_start = salted
        self.stream_start = b'"stream_options":{"include_usage":true},' + salted
        self._lines = lines
        self._heads: dict[Upstream, bytes] = {}

    def head_for(self, upstream: Upstream) -> bytes:
        """The head of the engine's request up to the lines that each request has its own of."""
        head = self._heads.get(upstream)
        if head is None:
            if len(self._heads) >= _MAX_UPSTREAMS:
                self._heads.clear()
            head = self._heads[upstream] = upstream.request_start("POST", self.path, self._lines)
        return head


def quick_call(state: GatewayState, head: KnownHead, request: Request, body: bytes) -> Call | None:
    """The call of a request with a known head; None where the long way must decide."""
    plan = head.plan
    if plan is None or plan.live is not state.live:
        plan = head.plan = _plan(state, head)
        if plan is None:
            return None
    if time.time() >= plan.until_s:
        return None
    found = scan(body, plan.completions, plan.keyed)
    if found is None:
        return None
    model, stream, wants_usage, prompt_tokens, prompt_chars, max_tokens, n, user, spliceable = found
    adds_usage = stream and not wants_usage
    pool = state.table.pool(model)
    if pool is None or (adds_usage and not spliceable):
        return None
    if plan.models is not None and model not in plan.models:
        return None
    if plan.max_context_tokens is not None and prompt_tokens + (max_tokens or 0) > plan.max_context_tokens:
        return None
    facts = Facts()
    facts.document = _NO_DOCUMENT
    facts.kind = plan.api.body  # type: ignore[assignment]
    facts.model = model
    facts.stream = stream
    facts.prompt_chars = prompt_chars
    facts.num_prompt_tokens_estimate = prompt_tokens
    facts.max_tokens = max_tokens
    facts.n = n
    facts.wants_usage = wants_usage
    facts.usage_addable = adds_usage
    facts.user = user
    cost_tokens = prompt_tokens + n * (max_tokens or COMPLETION_ESTIMATE_TOKENS)
    call = Call(
        request, plan.api, path=plan.path, tenant=plan.tenant, pools=(model,), requested=model, body=body, facts=facts,
        cost_tokens=min(cost_tokens, MAX_COST_TOKENS), decided_s=request.received_s,
    )  # fmt: skip
    call.plan = plan
    call.pool_at_once = pool
    call.adds_usage = adds_usage
    start = plan.stream_start if adds_usage else plan.whole_start
    if start:
        at = body.index(b"{") + 1
        call.sent_body = b"{%b%b" % (start, body[at:])
    else:
        call.sent_body = body
    return call


def _plan(state: GatewayState, head: KnownHead) -> Plan | None:
    live = state.live
    path = head.url.partition(b"?")[0]
    api = APIS.get(path)
    if api is None or api.body not in (BodyKind.CHAT, BodyKind.COMPLETIONS) or head.method != "POST":
        return None
    if live.rules.needs_facts or state.remote_counters is not None or state.tracer is not None:
        return None
    if b"origin" in head.noted or b"x-request-timeout" in head.noted or b"content-length" not in head.noted:
        return None
    key = presented_key(head.noted)
    now_s = time.time()
    tenant = live.keys.tenant_of(key, now_s) if key or not live.keys.asks else None
    if tenant is None:
        return None
    return Plan(live, api, head.url, tenant, live.keys.good_until_s(key), head.forwarded)
