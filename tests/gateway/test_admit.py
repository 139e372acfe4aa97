"""The one way into a request: a head that came before decides what the same head decides when it is new."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis_server
from gateway_lab import config, endpoint, keyed, post_bytes, push_policy, settled, table
from hypothesis import given
from hypothesis import strategies as st
from test_native import AWKWARD, ORDINARY, STYLES, awkward_objects

from longboat.core.policy import Alias, Policy, RouteRule, TenantPolicy, WeightedPool
from longboat.gateway.api import body as bodies_module
from longboat.gateway.api.body import BodyKind, read_body, read_facts, splice
from longboat.gateway.calls.head import HeadPlan, KnownHead, KnownHeads
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.exchange.upstream_request import body_for
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal
from longboat.gateway.http.strict_json import BodyError
from longboat.gateway.limits.keys import new_key
from longboat.gateway.records.spans import FinishedSpan
from longboat.gateway.records.tracing import Tracer
from longboat.gateway.requests.admit import Deferred, admit

CHAT, COMPLETIONS = b"/v1/chat/completions", b"/v1/completions"
MODELS = ("tiny", "org/llama", "other")
ASK = b'{"model":"tiny","messages":[{"role":"user","content":"hello"}]}'
ASK_STREAM = ASK[:-1] + b',"stream":true}'
ENDPOINTS = tuple(
    endpoint(f"http://127.0.0.1:{9 + at}{'/base/v1' * (at % 2)}", f"r{at}", m) for at, m in enumerate(MODELS)
)
Decision = Call | Deferred | Refusal | bytes


def state_with(policy: Policy, models: tuple[str, ...] = MODELS) -> GatewayState:
    state = GatewayState(config())
    state.offer_table("e", table(*(e for e in ENDPOINTS if e.model in models), models=models))
    state.offer_policy(msgspec.json.encode(policy))
    return state


def known_head(url: bytes = CHAT, *lines: bytes) -> KnownHead:
    """A head that came before, as the client's connection and ``KnownHeads`` make it of these header lines."""
    data = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: 0\r\n\r\n" % (url, b"".join(lines))
    request = Request(url, "POST", "first", {b"host": b"x", b"content-length": b"0"}, [b"x-keep: 1\r\n"])
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower().startswith(b"x-r-"):
            request.forwarded.append(line)
        else:
            request.noted[name.lower()] = value.strip()
    heads = KnownHeads()
    heads.learn(data, request)
    found = heads.match(data)
    assert found is not None
    return found[0]


def request_of(head: KnownHead, body: bytes, request_id: str = "r") -> Request:
    request = head.request(body)
    request.request_id = request_id
    return request


def decide(state: GatewayState, head: KnownHead, body: bytes, request_id: str = "r") -> Decision:
    """What is decided of a request with a head that may be known; the same as where it is not."""
    new = admit(state, request_of(head, body, request_id), None, close=False)
    known = admit(state, request_of(head, body, request_id), head, close=False)
    same = admit(state, request_of(head, body, request_id), head, close=False)
    assert told(state, new) == told(state, known) == told(state, same)
    return known


def call_of(state: GatewayState, head: KnownHead, body: bytes = ASK, request_id: str = "r") -> Call:
    call = decide(state, head, body, request_id)
    assert isinstance(call, Call), call
    return call


def code_of(state: GatewayState, head: KnownHead, body: bytes) -> str:
    refusal = decide(state, head, body)
    assert isinstance(refusal, Refusal), refusal
    return refusal.code


def told(state: GatewayState, decision: Decision) -> object:
    """All that is decided, so that two decisions can be compared."""
    if not isinstance(decision, Call):
        return decision if isinstance(decision, bytes) else values_of(decision)
    start = decision.method, decision.path, decision.request.forwarded
    heads = [upstream.request_start(*start) for upstream in state.table.upstreams()]
    body = body_for(decision)  # also says whether usage is added
    made_of_it = ("request", "facts", "decided_s", "plan", "deadline_s")
    rest = {name: value for name, value in values_of(decision).items() if name not in made_of_it}
    return heads, body, rest, values_of(decision.facts), decision.deadline_s is None


def values_of(one: object) -> dict[str, Any]:
    """The attributes of an object, whether its class is compiled or not."""
    names = set(getattr(type(one), "__mypyc_attrs__", None) or getattr(type(one), "__slots__", ()))
    if not names:
        fixed = {n for n, v in vars(type(one)).items() if not n.startswith("_") and not callable(v)}
        names = {n for n in fixed if type(getattr(type(one), n)) is not property} | set(vars(one))
    return {name: getattr(one, name, None) for name in names}


# the property: bodies, tenants, models, rules

TENANTS = st.builds(
    TenantPolicy,
    name=st.just("a"),
    models=st.none() | st.lists(st.sampled_from([*MODELS, "gone", "alias"]), max_size=3, unique=True).map(tuple),
    max_context_tokens=st.none() | st.integers(0, 300),
    cache_group=st.sampled_from(["", "club"]),
    priority=st.integers(0, 2),
    tags=st.sampled_from([(), ("gold",)]),
)
KEY_LINES = st.sampled_from(
    [b"authorization: Bearer %b\r\n", b"Authorization: bearer %b\r\n", b"x-api-key: %b\r\n", b"api-key: %b\r\n"]
)
LIVES_S = st.sampled_from([None, None, 1e6, -1e6])
URLS = st.sampled_from(
    [CHAT, COMPLETIONS, CHAT + b"?api-version=1", b"/v1/embeddings", b"/v1/messages", b"/v1/responses"]
)
NAMES = st.sampled_from([*MODELS, "alias", "gone"])
RULES = st.builds(
    RouteRule,
    to=NAMES,
    model=st.sampled_from(["*", *MODELS, "alias"]),
    tenants=st.sampled_from([(), (), ("a",), ("b",)]),
    tags=st.sampled_from([(), (), ("gold",)]),
    headers=st.sampled_from([{}, {}, {"x-r-lane": "1"}, {"x-r-lane": "*"}]),
    fields=st.sampled_from([{}, {}, {"user": "*"}, {"stream": "true"}, {"n": "2"}]),
    min_prompt_tokens=st.none() | st.integers(0, 50),
    max_context_tokens=st.none() | st.integers(0, 300),
)
ALIASES = st.builds(
    Alias,
    name=st.sampled_from(["alias", "tiny"]),
    pools=st.lists(
        st.builds(WeightedPool, model=st.sampled_from([*MODELS, "gone"]), weight=st.floats(0.1, 9)),
        min_size=1, max_size=3, unique_by=lambda pool: pool.model,
    ).map(tuple),
    sticky=st.sampled_from(["user", "tenant", "request", "header:x-r-lane"]),
)  # fmt: skip
ROUTES = st.fixed_dictionaries(
    {
        "rules": st.lists(RULES, max_size=3).map(tuple),
        "aliases": st.lists(ALIASES, max_size=2, unique_by=lambda alias: alias.name).map(tuple),
        "fallbacks": st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=2).map(tuple), max_size=2),
    }
)
BODY_MODELS = st.sampled_from([*MODELS, *MODELS, "alias", "unknown", ""])
DOCUMENTS = st.builds(lambda document, model: document | {"model": model}, ORDINARY, BODY_MODELS)
BODIES = st.builds(lambda document, style: style(document), DOCUMENTS, STYLES) | awkward_objects(AWKWARD).map(
    lambda text: text.replace("{", '{"model":"tiny"' + (", " if len(text) > 2 else ""), 1).encode()
)


@st.composite
def policies(draw: st.DrawFn) -> tuple[Policy, list[bytes]]:
    """A policy, and the lines by which a client presents its key, or something like it."""
    tenant, routes = draw(TENANTS), draw(ROUTES)
    lane = [b"x-r-lane: 1\r\n"] * draw(st.sampled_from([0, 1]))
    if draw(st.booleans()):
        return Policy(tenants=(dataclasses.replace(tenant, name="anonymous"),), **routes), lane
    life_s = draw(LIVES_S)
    key, record = new_key("a", now_s=0.0, expires_s=None if life_s is None else time.time() + life_s)
    presented = draw(st.sampled_from([key, key, key, key + "x", ""]))
    policy = Policy(auth="keys", tenants=(tenant,), keys=(record,), salt="pepper", **routes)
    return policy, [draw(KEY_LINES) % presented.encode()] * draw(st.sampled_from([1, 1, 1, 0])) + lane


@given(policies(), URLS, st.lists(BODIES, min_size=1, max_size=4))
def test_known_head_decides_what_it_decides_when_it_is_new(
    policy: tuple[Policy, list[bytes]], url: bytes, bodies: list[bytes]
) -> None:
    state, head = state_with(policy[0]), known_head(url, *policy[1])
    for number, body in enumerate(bodies):
        decide(state, head, body, f"r{number}")


@given(ORDINARY, STYLES, st.booleans(), st.booleans(), st.none() | st.sampled_from(["other", "m"]))
def test_scanned_body_is_the_body_that_is_read(
    document: dict[str, Any], style: Any, chat: bool, keyed: bool, model: str | None
) -> None:
    """What reaches an engine does not depend on which of the two reads it, down to the order of its members."""
    body, kind = style(document), BodyKind.CHAT if chat else BodyKind.COMPLETIONS
    try:
        read = read_facts(body, kind, refuse_fleet_fields=True, may_salt=not keyed)
    except BodyError as error:
        with pytest.raises(BodyError, match="") as same:
            read_body(body, kind, keyed=keyed, content_type=b"")
        assert same.value.code == error.code
        return
    facts = read_body(body, kind, keyed=keyed, content_type=b"")
    decoding = dict.fromkeys(("document", "model_at", "model_end"))
    assert values_of(facts) | decoding == values_of(read) | decoding
    salt = "salt" if keyed else None
    sent = [splice(body, one, model=model, add_usage=True, cache_salt=salt) for one in (facts, read)]
    one, other = (list(json.loads(text, object_pairs_hook=list)) for text in sent)
    assert one == other


@given(ORDINARY, STYLES)
def test_fields_for_rules_are_the_same_of_a_scanned_body(document: dict[str, Any], style: Any) -> None:
    body, names = style(document), frozenset(("user", "stream", "n", "seed", "stop", "gone", "temperature"))
    try:
        read = read_facts(body, BodyKind.CHAT, refuse_fleet_fields=True)
    except BodyError:
        return
    facts = read_body(body, BodyKind.CHAT, keyed=True, content_type=b"")
    assert bodies_module.top_fields(body, facts, names) == bodies_module.top_fields(body, read, names)


# what each request carries


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(rules=(RouteRule(to="other", model="tiny", min_prompt_tokens=10**9),)),
        Policy(fallbacks={"tiny": ("other",)}),
        Policy(aliases=(Alias(name="alias", pools=(WeightedPool(model="tiny"), WeightedPool(model="other"))),)),
    ],
    ids=["plain", "rules", "fallbacks", "aliases"],
)
def test_request_asks_for_room_at_once_whatever_the_policy_routes_by(policy: Policy) -> None:
    state, head = state_with(policy), known_head()
    call = call_of(state, head)
    assert isinstance(call.plan, HeadPlan) and call.plan is head.plan


def test_rules_aliases_and_fallbacks_are_data_of_the_head() -> None:
    canary = (WeightedPool(model="tiny"), WeightedPool(model="org/llama"))
    rules = (RouteRule(to="other", fields={"user": "x"}), RouteRule(to="other", min_context_tokens=1000))
    policy = Policy(
        rules=rules, aliases=(Alias(name="alias", pools=canary, sticky="request"),), fallbacks={"tiny": ("other",)}
    )
    state, head = state_with(policy), known_head()
    assert call_of(state, head).pools == ("tiny", "other")
    plan = head.plan
    assert call_of(state, head, ASK[:-1] + b',"user":"x"}').pools == ("other",)
    assert call_of(state, head, ASK[:-1] + b',"max_tokens":1000}').why == "rule 2"
    asked = ASK.replace(b"tiny", b"alias")
    assert {call_of(state, head, asked, f"r{i}").pool for i in range(50)} == {"tiny", "org/llama"}
    assert head.plan is plan
    assert b'"model":"tiny"' in body_for(
        next(c for i in range(50) if (c := call_of(state, head, asked, f"r{i}")).pool == "tiny")
    )


@pytest.mark.parametrize("options", [b"null", b"{}", b'{"include_usage":false,"x":1}'])
def test_usage_is_added_to_options_that_are_there(options: bytes) -> None:
    """Another member of that name would go before the one that is there."""
    call = call_of(state_with(Policy()), known_head(), ASK_STREAM[:-1] + b',"stream_options":%b}' % options)
    assert body_for(call).count(b"stream_options") == 1 and call.adds_usage


def test_negative_limit_makes_no_request_cheap() -> None:
    state, head = state_with(Policy()), known_head()
    cheap = call_of(state, head, ASK[:-1] + b',"max_tokens":-1000000}')
    assert cheap.cost_tokens == call_of(state, head).cost_tokens


# what is refused


@pytest.fixture
def keyed_state() -> tuple[GatewayState, KnownHead, Policy]:
    policy, (line,) = keyed(TenantPolicy(name="a", models=("tiny", "gone"), max_context_tokens=100), salt="pepper")
    state, head = state_with(policy), known_head(CHAT, line.encode())
    call_of(state, head)
    return state, head, policy


def test_unknown_and_forbidden_models_are_refused(keyed_state: tuple[GatewayState, KnownHead, Policy]) -> None:
    state, head, _ = keyed_state
    assert code_of(state, head, ASK.replace(b"tiny", b"unknown")) == "model_not_found"
    assert code_of(state, head, ASK.replace(b"tiny", b"gone")) == "model_not_found"
    assert code_of(state, head, ASK.replace(b"tiny", b"other")) == "model_not_allowed"


def test_too_long_a_context_is_refused(keyed_state: tuple[GatewayState, KnownHead, Policy]) -> None:
    state, head, _ = keyed_state
    facts = call_of(state, head).facts
    assert facts is not None
    most = 100 - facts.num_prompt_tokens_estimate
    call_of(state, head, ASK[:-1] + b',"max_tokens":%d}' % most)
    assert code_of(state, head, ASK[:-1] + b',"max_tokens":%d}' % (most + 1)) == "context_length_exceeded"
    assert code_of(state, head, ASK.replace(b"hello", b"hello" * 100)) == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (ASK[:-1], "invalid_json"),
        (ASK + b"x", "invalid_json"),
        (ASK.replace(b'"tiny"', b"7"), "invalid_type"),
        (ASK[:-1] + b',"cache_salt":"another\'s"}', "fleet_field"),
        (ASK[:-1] + b',"stream":1}', "invalid_type"),
    ],
)
def test_bad_bodies_are_refused(body: bytes, code: str, keyed_state: tuple[GatewayState, KnownHead, Policy]) -> None:
    state, head, _ = keyed_state
    assert code_of(state, head, body) == code


def test_key_is_good_until_it_expires_and_no_longer() -> None:
    expires_s = time.time() + 0.5
    key, record = new_key("a", now_s=0.0, expires_s=expires_s)
    state = state_with(Policy(auth="keys", tenants=(TenantPolicy(name="a"),), keys=(record,)))
    head = known_head(CHAT, b"authorization: Bearer %b\r\n" % key.encode())
    while True:
        before_s, found, after_s = time.time(), admit(state, head.request(ASK), head, close=False), time.time()
        assert not isinstance(found, Call) or before_s < expires_s
        if after_s >= expires_s:
            break
    assert code_of(state, head, ASK) == "expired_api_key"


def test_revoked_key_is_refused_at_once(keyed_state: tuple[GatewayState, KnownHead, Policy]) -> None:
    state, head, policy = keyed_state
    state.offer_policy(msgspec.json.encode(dataclasses.replace(policy, keys=())))
    assert code_of(state, head, ASK) == "invalid_api_key"
    state.offer_policy(msgspec.json.encode(policy))
    call_of(state, head)


def test_changed_policy_decides_again(keyed_state: tuple[GatewayState, KnownHead, Policy]) -> None:
    state, head, policy = keyed_state

    def change(**changes: Any) -> None:
        tenant = dataclasses.replace(policy.tenants[0], **changes.pop("tenant", {}))
        state.offer_policy(msgspec.json.encode(dataclasses.replace(policy, tenants=(tenant,), **changes)))

    bodies = set()
    for salt in ("salt", "vinegar"):
        change(salt=salt)
        bodies |= {body_for(call_of(state, head)), body_for(call_of(state, head, ASK_STREAM))}
    assert len(bodies) == 4
    change(fallbacks={"tiny": ("other",)})
    assert call_of(state, head).pools == ("tiny", "other")
    change(rules=(RouteRule(to="org/llama"),))
    assert call_of(state, head).pools == ("org/llama",)
    change(tenant={"models": ("other",)})
    assert code_of(state, head, ASK) == "model_not_allowed"
    change(tenant={"max_context_tokens": 1})
    assert code_of(state, head, ASK) == "context_length_exceeded"
    change(auth="none")
    assert call_of(state, head).tenant.name == "anonymous"


def test_models_that_come_and_go_are_seen_at_once() -> None:
    state, head = state_with(Policy(), ("other",)), known_head()
    assert code_of(state, head, ASK) == "model_not_found"
    state.offer_table("e", table(*ENDPOINTS, models=MODELS, version=2))
    call_of(state, head)
    state.offer_table("e", table(models=("other",), version=3))
    assert code_of(state, head, ASK) == "model_not_found"
    assert code_of(GatewayState(config()), head, ASK) == "no_table"


def test_deadline_of_a_known_head_counts_from_each_request() -> None:
    state, head = state_with(Policy()), known_head(CHAT, b"x-request-timeout: 5\r\n")
    for _ in range(3):
        begun_s = time.monotonic()
        deadline_s = call_of(state, head).deadline_s
        assert deadline_s is not None and deadline_s > begun_s + 4


# what is beyond one process: traces, counters behind a network

Make = Callable[..., Any]


class _Spans:
    """Keeps what is exported."""

    def __init__(self) -> None:
        self.finished: list[FinishedSpan] = []

    def export(self, finished: Any) -> str:
        self.finished += finished
        return ""

    def shutdown(self) -> None:
        """Nothing is open."""


async def same_requests(gateway: Any, upstream: Any, client: Any, headers: str) -> list[dict[str, Any]]:
    """Send the same requests while their head is new, and when it is known; what the engine got is the same."""
    for body in (ASK, ASK, ASK_STREAM, ASK_STREAM, ASK):
        assert (await client.post(body, "/v1/chat/completions?x=1", headers)).status == 200
    own = (b"x-request-id", b"traceparent")
    heads = [[line for line in seen.head.split(b"\r\n") if not line.startswith(own)] for seen in upstream.seen]
    assert heads[0] == heads[1] == heads[4] and heads[2] == heads[3]
    bodies = [json.loads(seen.body) for seen in upstream.seen]
    assert bodies[0] == bodies[1] == bodies[4] and bodies[2] == bodies[3]
    found = gateway.state.heads.match(post_bytes(ASK, "/v1/chat/completions?x=1", headers))
    assert found is not None and found[0].plan is not None and found[0].plan.live is gateway.state.live
    return bodies


ROUTED: dict[str, Any] = {
    "aliases": (Alias(name="alias", pools=(WeightedPool(model="tiny"),)),),
    "fallbacks": {"tiny": ("other",)},
    "rules": (RouteRule(to="other", headers={"x-batch": "*"}), RouteRule(to="other", min_context_tokens=10**6)),
}


@pytest.mark.parametrize("routes", [{}, ROUTED], ids=["plain", "routed"])
async def test_engine_gets_the_same_request_of_a_new_and_a_known_head(
    routes: dict[str, Any], make_upstream: Make, make_gateway: Make, connect: Make
) -> None:
    upstream = await make_upstream()
    policy, (key,) = keyed(TenantPolicy(name="a"), salt="pepper", **routes)
    gateway = await make_gateway(upstream, policy=policy, endpoints=(endpoint("http://127.0.0.1:9", "o", "other"),))
    client = await connect(gateway)
    bodies = await same_requests(gateway, upstream, client, f"x-keep: 1\r\n{key}")
    assert bodies[0]["cache_salt"] and bodies[2]["stream_options"] == {"include_usage": True}
    push_policy(gateway, dataclasses.replace(policy, keys=()))
    assert (await client.post(ASK, "/v1/chat/completions?x=1", f"x-keep: 1\r\n{key}")).status == 401


async def test_traced_requests_go_the_same_way(make_upstream: Make, make_gateway: Make, connect: Make) -> None:
    upstream, spans = await make_upstream(), _Spans()
    gateway = await make_gateway(upstream)
    gateway.state.accounting.tracer = Tracer("http://nowhere:4318", export=spans)
    await same_requests(gateway, upstream, await connect(gateway), "x-keep: 1\r\n")
    assert len({seen.header("traceparent") for seen in upstream.seen}) == 5
    settled(gateway).accounting.tracer.close()  # type: ignore[union-attr]
    assert len(spans.finished) == 5


PROGRAMS = redis_server.programs()


@pytest.mark.skipif(not PROGRAMS, reason="no redis-server is here: install the development requirements")
async def test_requests_counted_in_redis_go_the_same_way(
    make_upstream: Make, make_gateway: Make, connect: Make, tmp_path: Path
) -> None:
    server = redis_server.RedisServer(next(iter(PROGRAMS.values())), tmp_path)
    server.start()
    try:
        upstream = await make_upstream()
        policy, (key,) = keyed(TenantPolicy(name="a", requests_per_minute=5), salt="pepper")
        gateway = await make_gateway(upstream, policy=policy, settings={"redis_url": server.url, "fleet": "f"})
        client = await connect(gateway)
        await same_requests(gateway, upstream, client, f"x-keep: 1\r\n{key}")
        assert (await client.post(ASK, "/v1/chat/completions?x=1", f"x-keep: 1\r\n{key}")).status == 429
    finally:
        server.kill()
