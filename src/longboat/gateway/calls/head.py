"""What the head of a request decides, and heads that came before: those of one client differ in their length only."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from longboat.gateway.api.apis import APIS, RESPONSES, TOKENIZER_INFO
from longboat.gateway.api.paths import DEPLOYMENT, is_coded, not_relayed, unknown_path
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request, path_text
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.keys import presented_key
from longboat.gateway.native.leaf_work import head_of
from longboat.routing.route_rules import HeadRoutes

if TYPE_CHECKING:
    from longboat.core.policy import TenantPolicy
    from longboat.gateway.api.apis import Api
    from longboat.gateway.limits.keys import KeyRing
    from longboat.gateway.limits.policy_view import LivePolicy
    from longboat.gateway.records.metrics import Series
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("HeadPlan", "KnownHead", "KnownHeads", "plan_head", "tenant_of")

_RESPONSE_PATH: Final = b"/v1/responses/"
_head_of: Final = head_of  # what is imported from C, compiled code would look up by its name each time
_TOKENIZER_PATH: Final = b"/tokenizer_info"
_MAX_HEADS: Final = 4096
_MAX_HEAD_BYTES: Final = 8192
_OF_ONE_REQUEST: Final = frozenset(
    b"x-request-id traceparent tracestate x-request-deadline last-event-id x-longboat-resume"
    b" transfer-encoding expect upgrade content-encoding".split()
)
"""Headers that change with each request, or how it is read: heads with them are not remembered."""


def sticky_value(rule: str, request: Request) -> str:
    """Return the value of the header, or of the cookie, that ``rule`` names; empty where the request has none."""
    kind, _, name = rule.partition(":")
    if kind == "header":
        return request.headers_named(frozenset((name,))).get(name, "")
    for part in request.noted.get(b"cookie", b"").split(b";") if kind == "cookie" else ():
        found, _, value = part.strip().partition(b"=")
        if found.decode("latin-1") == name:
            return value.decode("latin-1")
    return ""


class HeadPlan:  # size: a plain record of what a head decides
    """What a request's head decides under one policy, for all requests that have this head."""

    __slots__ = (
        "allowed_fields", "api", "comes_back", "content_type", "counted", "deployment", "forwarded", "has_deadline",
        "keyed", "live", "max_context_tokens", "media", "method", "models", "path", "path_text", "priority",
        "response_id", "routes", "salt", "seed", "seeded", "series", "starts", "sticky", "tasks", "tenant",
        "tenant_name", "until_s", "weight",
    )  # fmt: skip

    def __init__(
        self, live: LivePolicy, request: Request, api: Api, tenant: TenantPolicy, until_s: float, response_id: str = ""
    ) -> None:
        self.live = live
        self.api = api
        self.tenant = tenant
        self.until_s = until_s  # Unix time from which the key is no longer good
        self.method = request.method
        self.path = request.url  # the engine's, with the query
        self.path_text = path_text(request.url)
        self.response_id = response_id  # of the stored response that it names; empty where a body says what is wanted
        self.salt = live.cache_salt(tenant)
        headers = request.headers_named(live.rules.header_names) if live.rules.header_names else {}
        self.routes = HeadRoutes(live.rules, tenant.name, tenant.tags, headers, may_leave=tenant.external)
        # What keeps its requests at one replica; empty: nothing does.
        self.sticky = sticky_value(live.policy.routing.sticky, request)
        # What was made for its last request, and holds for the next one that goes to the same model:
        self.seeded, self.seed = "", b""  # what keeps the caches of prompts apart
        self.counted = ""  # whose metrics are in ``series``
        self.series: Series | None = None
        self.forwarded = request.forwarded  # by which later requests are known to have its lines
        self.starts: dict[Upstream, bytes] = {}  # heads of requests to engines, without what differs in each
        # What every request is compared with: read here once, for all that have this head.
        self.keyed = live.keys.asks
        self.tasks, self.media = live.policy.tasks, live.policy.media
        self.tenant_name, self.weight, self.priority = tenant.name, tenant.weight, tenant.priority
        self.models, self.max_context_tokens = tenant.models, tenant.max_context_tokens
        self.allowed_fields = tenant.allow_fields
        noted = request.noted
        self.content_type, self.deployment = noted.get(b"content-type", b""), noted.get(DEPLOYMENT)
        self.has_deadline = b"x-request-timeout" in noted or b"x-request-deadline" in noted
        self.comes_back = b"x-longboat-resume" in noted


def plan_head(live: LivePolicy, request: Request) -> HeadPlan | Refusal | None:
    """Return what the head decides, or why it is refused; None where no engine is asked on its path."""
    path = request.url.partition(b"?")[0]
    api = APIS.get(path)
    if api is None:
        return _plan_bodiless(live, request, path)
    if request.method != "POST":
        return error_responses.method_not_allowed(request.method, "POST")
    tenant = tenant_of(live.keys, request)
    if isinstance(tenant, Refusal):
        return tenant
    noted = request.noted
    if b"content-length" not in noted and b"transfer-encoding" not in noted:
        return error_responses.length_required()
    if is_coded(noted.get(b"content-encoding", b"")):
        return error_responses.coded_body(noted[b"content-encoding"].decode("latin-1"))
    return HeadPlan(live, request, api, tenant, _good_until_s(live.keys, request))


def _plan_bodiless(live: LivePolicy, request: Request, path: bytes) -> HeadPlan | Refusal | None:
    """Return the plan of a path on which no body says what is wanted."""
    if (refusal := not_relayed(path.decode("latin-1"))) is not None:
        return refusal
    if path.startswith(_RESPONSE_PATH):
        return _plan_stored(live, request, path)
    if path != _TOKENIZER_PATH:
        return None
    if request.method != "GET":
        return error_responses.method_not_allowed(request.method, "GET")
    tenant = tenant_of(live.keys, request)
    if isinstance(tenant, Refusal):
        return tenant
    return HeadPlan(live, request, TOKENIZER_INFO, tenant, _good_until_s(live.keys, request))


def _plan_stored(live: LivePolicy, request: Request, path: bytes) -> HeadPlan | Refusal:
    """Return the plan of a path about a stored response, which only the replica that made it can answer."""
    tenant = tenant_of(live.keys, request)
    if isinstance(tenant, Refusal):
        return tenant
    response_id, _, action = path[len(_RESPONSE_PATH) :].decode("latin-1").partition("/")
    allowed = {"": ("GET", "DELETE"), "cancel": ("POST",), "input_items": ("GET",)}.get(action)
    if allowed is None or not response_id:
        return unknown_path(path.decode("latin-1"))
    if request.method not in allowed:
        return error_responses.method_not_allowed(request.method, ", ".join(allowed))
    return HeadPlan(live, request, RESPONSES, tenant, _good_until_s(live.keys, request), response_id)


def tenant_of(keys: KeyRing, request: Request) -> TenantPolicy | Refusal:
    """Return the tenant whose key the request presents, or why it has none."""
    if not keys.asks:
        return keys.anonymous
    key = presented_key(request.noted)
    now_s = time.time()
    tenant = keys.tenant_of(key, now_s) if key else None
    if tenant is None:
        return error_responses.no_key() if not key else error_responses.wrong_key(expired=keys.has_expired(key, now_s))
    return tenant


def _good_until_s(keys: KeyRing, request: Request) -> float:
    return keys.good_until_s(presented_key(request.noted)) if keys.asks else math.inf


class KnownHead:
    """What the parser made of a head. Shared by all requests that have it: never change what it holds."""

    __slots__ = ("forwarded", "method", "noted", "plan", "url")

    def __init__(self, request: Request) -> None:
        self.method = request.method
        self.url = request.url
        self.noted = request.noted
        self.forwarded = request.forwarded
        self.plan: HeadPlan | None = None  # what it decided under the policy of its last request

    def request(self, body: bytes) -> Request:
        """Return a new request with this head. It has no id yet."""
        request = Request(self.url, self.method, "", self.noted, self.forwarded)
        request.pieces.append(body)
        request.held_bytes = len(body)
        return request


class KnownHeads:
    """Heads by their bytes without the digits of Content-Length, so that equal bytes mean an equal reading.

    Only what the parser read whole, and the gateway did not refuse, is learned. All is forgotten when it is too much.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def match(self, data: bytes) -> tuple[KnownHead, int] | None:
        """Return the known head of ``data`` and where its body begins; None if it is not exactly one such request."""
        found = _head_of(data, _MAX_HEAD_BYTES)
        if found is None:
            return None
        key, body_at, length = found
        if len(data) - body_at != length:
            return None
        head = self._heads.get(key)
        return None if head is None else (head, body_at)

    def forget_plans(self) -> None:
        """Forget what heads decided, so that nothing keeps an old policy."""
        for head in self._heads.values():
            head.plan = None

    def learn(self, data: bytes, request: Request) -> None:
        """Remember the head that ``data`` begins with, which the parser read as ``request`` without fault."""
        if not request.keep_alive or not _OF_ONE_REQUEST.isdisjoint(request.noted):
            return
        found = head_of(data, _MAX_HEAD_BYTES)
        if found is None or request.noted.get(b"content-length") != b"%d" % found[2]:
            return
        head = data[: found[1] - 4]
        if head.count(b"\n") != head.count(b"\r\n") or not head.startswith(b"POST "):
            return
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[found[0]] = KnownHead(request)
