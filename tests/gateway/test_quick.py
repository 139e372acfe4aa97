"""The short way into a request says what the long way says, or nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import msgspec
import pytest
from gateway_lab import config, endpoint, keyed, push_policy, table
from hypothesis import given
from hypothesis import strategies as st
from test_native import AWKWARD, ORDINARY, STYLES, awkward_objects, needs_native

from longboat.core.policy import Alias, Policy, RouteRule, TenantPolicy, WeightedPool
from longboat.gateway.api.body import Facts
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.keys import new_key
from longboat.gateway.requests.dispatch import Later, decide
from longboat.gateway.requests.fast_path import quick_call
from longboat.gateway.requests.head_cache import KnownHead, KnownHeads
from longboat.gateway.requests.model_request import Call
from longboat.gateway.requests.state import GatewayState
from longboat.gateway.requests.upstream_request import body_for

CHAT, COMPLETIONS = b"/v1/chat/completions", b"/v1/completions"
MODELS = ("tiny", "org/llama", "other")
ASK = b'{"model":"tiny","messages":[{"role":"user","content":"hello"}]}'
ASK_STREAM = ASK[:-1] + b',"stream":true}'
ENDPOINTS = tuple(
    endpoint(f"http://127.0.0.1:{9 + at}{'/base/v1' * (at % 2)}", f"r{at}", m) for at, m in enumerate(MODELS)
)


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
        request.noted[name.lower()] = value.strip()
    heads = KnownHeads()
    heads.learn(data, request)
    found = heads.match(data)
    assert found is not None
    return found[0]


def both_ways(state: GatewayState, head: KnownHead, body: bytes) -> tuple[Call | None, Call | Later | Refusal | bytes]:
    """What either way makes of a request; where the short one makes a call, it is the same as the long one's."""
    requests = [head.request(body) for _ in range(2)]
    for request in requests:
        request.request_id = "r"
    short, long = quick_call(state, head, requests[0], body), decide(state, requests[1], close=False)
    if short is not None:
        assert isinstance(long, Call), long
        assert short.request is requests[0]
        assert same_for_the_engine(state, short, long)
        assert facts_of(short) == facts_of(long)
        assert rest_of(short) == rest_of(long)
    return short, long


def same_for_the_engine(state: GatewayState, short: Call, long: Call) -> bool:
    body = body_for(long)  # also says whether usage was added
    assert short.sent_body == body and short.plan is not None
    for upstream in state.table.upstreams():
        start = upstream.request_start(long.method, long.path, long.request.forwarded)
        assert short.plan.head_for(upstream) == start
    return True


def attributes_of(kind: type) -> set[str]:
    """Whether it is compiled or not; none where they are in each object's dictionary."""
    return set(getattr(kind, "__mypyc_attrs__", None) or getattr(kind, "__slots__", ()))


def facts_of(call: Call) -> dict[str, Any]:
    """All but the document, which weighs more than the body."""
    assert isinstance(call.facts, Facts)
    return {name: getattr(call.facts, name) for name in attributes_of(Facts) if name != "document"}


def rest_of(call: Call) -> dict[str, Any]:
    """All that a call holds besides, of which none may be forgotten."""
    made_of_it = {"request", "facts", "decided_s", "plan", "pool_at_once", "salt", "sent_body"}
    names = attributes_of(Call)
    if not names:
        fixed = {n for n, v in vars(Call).items() if not n.startswith("_") and not callable(v)}
        names = {n for n in fixed if type(getattr(Call, n)) is not property} | set(vars(call))
    return {name: getattr(call, name) for name in names if name not in made_of_it}


# the property: bodies, tenants, models

TENANTS = st.builds(
    TenantPolicy,
    name=st.just("a"),
    models=st.none() | st.lists(st.sampled_from([*MODELS, "gone"]), max_size=3, unique=True).map(tuple),
    max_context_tokens=st.none() | st.integers(0, 300),
    cache_group=st.sampled_from(["", "club"]),
    priority=st.integers(0, 2),
)
KEY_LINES = st.sampled_from(
    [b"authorization: Bearer %b\r\n", b"Authorization: bearer %b\r\n", b"x-api-key: %b\r\n", b"api-key: %b\r\n"]
)
LIVES_S = st.sampled_from([None, None, 1e6, -1e6])
URLS = st.sampled_from(
    [CHAT, COMPLETIONS, CHAT + b"?api-version=1", b"/v1/embeddings", b"/v1/messages", b"/v1/responses"]
)
BODY_MODELS = st.sampled_from([*MODELS, *MODELS, "unknown", ""])
DOCUMENTS = st.builds(lambda document, model: document | {"model": model}, ORDINARY, BODY_MODELS)
BODIES = st.builds(lambda document, style: style(document), DOCUMENTS, STYLES) | awkward_objects(AWKWARD).map(
    lambda text: text.replace("{", '{"model":"tiny"' + (", " if len(text) > 2 else ""), 1).encode()
)


@st.composite
def policies(draw: st.DrawFn) -> tuple[Policy, list[bytes]]:
    """A policy, and the lines by which a client presents its key, or something like it."""
    tenant = draw(TENANTS)
    if draw(st.booleans()):
        return Policy(tenants=(dataclasses.replace(tenant, name="anonymous"),)), []
    life_s = draw(LIVES_S)
    key, record = new_key("a", now_s=0.0, expires_s=None if life_s is None else time.time() + life_s)
    presented = draw(st.sampled_from([key, key, key, key + "x", ""]))
    policy = Policy(auth="keys", tenants=(tenant,), keys=(record,), salt="pepper")
    return policy, [draw(KEY_LINES) % presented.encode()] * draw(st.sampled_from([1, 1, 1, 0]))


@given(policies(), URLS, st.lists(BODIES, min_size=1, max_size=4))
def test_short_way_says_what_the_long_way_says_or_nothing(
    policy: tuple[Policy, list[bytes]], url: bytes, bodies: list[bytes]
) -> None:
    state, head = state_with(policy[0]), known_head(url, *policy[1])
    for body in bodies:
        both_ways(state, head, body)


@needs_native
@given(ORDINARY, st.sampled_from(["tiny", "other", "unknown"]), STYLES, st.booleans(), st.booleans())
def test_ordinary_requests_go_the_short_way(
    document: dict[str, Any], model: str, style: Any, chat: bool, keys: bool
) -> None:
    document = document | {"model": model}
    policy, lines = keyed(TenantPolicy(name="a"), salt="pepper") if keys else (Policy(), [""])
    short, long = both_ways(
        state_with(policy),
        known_head(CHAT if chat else COMPLETIONS, *lines[0].encode().splitlines(True)),
        style(document),
    )
    adds_usage = isinstance(long, Call) and bool(document.get("stream")) and short is None
    # Where usage is to be added to options that are there already, the body is written anew.
    assert (short is not None) == (isinstance(long, Call) and not adds_usage)
    assert not adds_usage or "stream_options" in document


@needs_native
@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize(
    "more",
    [b'"n":3', b'"n":3,"max_tokens":7', b'"max_tokens":0', b'"n":999999999,"max_tokens":999999999', b'"user":"u"',
     b'"stream":true', b'"stream":true,"stream_options":{"include_usage":true}', b'"stream_options":{}'],
)  # fmt: skip
def test_request_with_this_goes_the_short_way(more: bytes, keys: bool) -> None:
    policy, lines = keyed(TenantPolicy(name="a"), salt="pepper") if keys else (Policy(), [""])
    state, head = state_with(policy), known_head(CHAT, *lines[0].encode().splitlines(True))
    assert both_ways(state, head, ASK[:-1] + b"," + more + b"}")[0] is not None


@pytest.mark.parametrize("options", [b"null", b"{}", b'{"include_usage":false,"x":1}'])
def test_options_without_usage_are_left_to_the_long_way(options: bytes) -> None:
    """Another member of that name would go before the one that is there."""
    short, long = both_ways(state_with(Policy()), known_head(), ASK_STREAM[:-1] + b',"stream_options":%b}' % options)
    assert short is None and isinstance(long, Call)
    assert body_for(long).count(b"stream_options") == 1 and long.adds_usage


# what it must leave to the long way


@pytest.fixture
def keyed_state() -> tuple[GatewayState, KnownHead, Policy]:
    policy, (line,) = keyed(TenantPolicy(name="a", models=("tiny", "gone"), max_context_tokens=100), salt="pepper")
    state, head = state_with(policy), known_head(CHAT, line.encode())
    both_ways(state, head, ASK)
    return state, head, policy


def left(state: GatewayState, head: KnownHead, body: bytes) -> str:
    """The code of the refusal by which the long way answers what the short way leaves to it."""
    short, long = both_ways(state, head, body)
    assert short is None and isinstance(long, Refusal)
    return long.code


def test_unknown_and_forbidden_models_are_left_to_the_long_way(
    keyed_state: tuple[GatewayState, KnownHead, Policy],
) -> None:
    state, head, _ = keyed_state
    assert left(state, head, ASK.replace(b"tiny", b"unknown")) == "model_not_found"
    assert left(state, head, ASK.replace(b"tiny", b"gone")) == "model_not_found"
    assert left(state, head, ASK.replace(b"tiny", b"other")) == "model_not_allowed"


def test_too_long_a_context_is_left_to_the_long_way(keyed_state: tuple[GatewayState, KnownHead, Policy]) -> None:
    state, head, _ = keyed_state
    estimate = both_ways(state, head, ASK)[1].facts.num_prompt_tokens_estimate  # type: ignore[union-attr]
    most = 100 - estimate
    assert isinstance(both_ways(state, head, ASK[:-1] + b',"max_tokens":%d}' % most)[1], Call)
    assert left(state, head, ASK[:-1] + b',"max_tokens":%d}' % (most + 1)) == "context_length_exceeded"
    assert left(state, head, ASK.replace(b"hello", b"hello" * 100)) == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (ASK[:-1], "invalid_json"),
        (ASK + b"x", "invalid_json"),
        (ASK.replace(b"tiny", b""), "model_missing"),
        (ASK[:-1] + b',"cache_salt":"another\'s"}', "fleet_field"),
        (ASK[:-1] + b',"stream":1}', "invalid_type"),
    ],
)
def test_bad_bodies_are_left_to_the_long_way(
    body: bytes, code: str, keyed_state: tuple[GatewayState, KnownHead, Policy]
) -> None:
    state, head, _ = keyed_state
    assert left(state, head, body) == code


def test_key_is_good_until_it_expires_and_no_longer() -> None:
    expires_s = time.time() + 0.5
    key, record = new_key("a", now_s=0.0, expires_s=expires_s)
    state = state_with(Policy(auth="keys", tenants=(TenantPolicy(name="a"),), keys=(record,)))
    head = known_head(CHAT, b"authorization: Bearer %b\r\n" % key.encode())
    while True:
        before_s, short, after_s = time.time(), quick_call(state, head, head.request(ASK), ASK), time.time()
        assert short is None or before_s < expires_s
        if after_s >= expires_s:
            break
    assert left(state, head, ASK) == "expired_api_key"


def test_revoked_key_is_left_to_the_long_way_at_once(keyed_state: tuple[GatewayState, KnownHead, Policy]) -> None:
    state, head, policy = keyed_state
    state.offer_policy(msgspec.json.encode(dataclasses.replace(policy, keys=())))
    assert left(state, head, ASK) == "invalid_api_key"
    state.offer_policy(msgspec.json.encode(policy))
    assert isinstance(both_ways(state, head, ASK)[1], Call)


def test_changed_policy_decides_anew(keyed_state: tuple[GatewayState, KnownHead, Policy]) -> None:
    state, head, policy = keyed_state

    def change(**changes: Any) -> None:
        tenant = dataclasses.replace(policy.tenants[0], **changes.pop("tenant", {}))
        state.offer_policy(msgspec.json.encode(dataclasses.replace(policy, tenants=(tenant,), **changes)))

    for salt in ("salt", "vinegar"):
        change(salt=salt)
        both_ways(state, head, ASK)
        both_ways(state, head, ASK_STREAM)
    change(tenant={"models": ("other",)})
    assert left(state, head, ASK) == "model_not_allowed"
    change(tenant={"max_context_tokens": 1})
    assert left(state, head, ASK) == "context_length_exceeded"
    change(auth="none")
    _, long = both_ways(state, head, ASK)
    assert isinstance(long, Call) and long.tenant.name == "anonymous"


@pytest.mark.parametrize(
    "policy",
    [
        Policy(rules=(RouteRule(to="other", model="tiny"),)),
        Policy(fallbacks={"tiny": ("other",)}),
        Policy(aliases=(Alias(name="tiny", pools=(WeightedPool(model="other", weight=1),)),)),
    ],
    ids=["rules", "fallbacks", "aliases"],
)
def test_rules_are_left_to_the_long_way(policy: Policy) -> None:
    state, head = state_with(Policy()), known_head()
    both_ways(state, head, ASK)
    state.offer_policy(msgspec.json.encode(policy))
    short, long = both_ways(state, head, ASK)
    assert short is None and isinstance(long, Call) and "other" in long.pools


def test_models_that_come_and_go_are_seen_at_once() -> None:
    state, head = state_with(Policy(), ("other",)), known_head()
    assert left(state, head, ASK) == "model_not_found"
    state.offer_table("e", table(*ENDPOINTS, models=MODELS, version=2))
    assert isinstance(both_ways(state, head, ASK)[1], Call)
    state.offer_table("e", table(models=("other",), version=3))
    assert left(state, head, ASK) == "model_not_found"
    assert left(GatewayState(config()), head, ASK) == "no_table"


@pytest.mark.parametrize("line", [b"origin: http://x\r\n", b"x-request-timeout: 5\r\n"])
def test_heads_that_ask_for_more_are_left_to_the_long_way(line: bytes) -> None:
    short, long = both_ways(state_with(Policy()), known_head(CHAT, line), ASK)
    assert short is None and isinstance(long, Call)


@pytest.mark.parametrize("name", ["remote_counters", "tracer"])
def test_what_needs_others_is_left_to_the_long_way(name: str) -> None:
    state = state_with(Policy())
    setattr(state, name, object())
    assert both_ways(state, known_head(), ASK)[0] is None


async def test_engine_gets_the_same_request_by_either_way(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream()
    policy, (key,) = keyed(TenantPolicy(name="a"), salt="pepper")
    gateway = await make_gateway(upstream, policy=policy)
    client = await connect(gateway)
    for body in (ASK, ASK, ASK_STREAM, ASK_STREAM):
        assert (await client.post(body, "/v1/chat/completions?x=1", f"x-keep: 1\r\n{key}")).status == 200
    heads = [[line for line in seen.head.split(b"\r\n") if b"x-request-id" not in line] for seen in upstream.seen]
    assert heads[0] == heads[1] and heads[2] == heads[3]
    bodies = [json.loads(seen.body) for seen in upstream.seen]
    assert bodies[0] == bodies[1] and bodies[2] == bodies[3]
    assert bodies[0]["cache_salt"] and bodies[2]["stream_options"] == {"include_usage": True}
    push_policy(gateway, dataclasses.replace(policy, keys=()))
    assert (await client.post(ASK, "/v1/chat/completions?x=1", f"x-keep: 1\r\n{key}")).status == 401
