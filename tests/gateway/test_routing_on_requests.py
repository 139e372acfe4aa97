"""Which model answers: aliases, canaries, rules and fallbacks, as engines and clients see them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_upstream import STREAM_HEAD, FakeUpstream, Seen, chunk, event, until_closed
from gateway_lab import Response, endpoint, eventually, keyed, post_bytes, push_policy
from test_exchange import refusing_url

from longboat.core.policy import Alias, Policy, QueuePolicy, RouteRule, TenantPolicy, WeightedPool

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
BIG = {**ASK, "model": "big"}


@pytest.fixture
async def two_models(make_upstream: Any, make_gateway: Any) -> Any:
    """Makes a gateway before the models ``tiny`` (replica r0) and ``big`` (replica b0)."""

    async def make(policy: Policy, **options: Any) -> tuple[Any, FakeUpstream, FakeUpstream]:
        tiny, big = await make_upstream(), await make_upstream()
        gateway = await make_gateway(tiny, policy=policy, endpoints=[endpoint(big, "b0", "big")], **options)
        return gateway, tiny, big

    return make


def model_of(seen: Seen) -> str:
    return str(json.loads(seen.body)["model"])


async def answering(client: Any, headers: str = "", **fields: Any) -> str:
    """The replica that answers a request."""
    response: Response = await client.post({**ASK, **fields}, headers=headers)
    assert response.status == 200, response.body
    return response.headers["x-longboat-replica"]


async def test_alias_is_answered_by_its_model_under_the_engines_name(two_models: Any, connect: Any) -> None:
    gateway, _, big = await two_models(Policy(aliases=(Alias(name="nick", pools=(WeightedPool(model="big"),)),)))
    client = await connect(gateway)
    response = await client.post({**ASK, "model": "nick"})
    assert (response.status, response.headers["x-longboat-model"]) == (200, "big")
    assert "x-longboat-fallback" not in response.headers
    assert json.loads(big.seen[0].body) == BIG
    plain = await client.post(ASK)
    assert "x-longboat-model" not in plain.headers
    assert {m["id"] for m in (await client.get("/v1/models")).json()["data"]} == {"tiny", "big", "nick"}


async def test_alias_takes_effect_by_a_new_policy(two_models: Any, connect: Any) -> None:
    gateway, _, big = await two_models(Policy())
    client = await connect(gateway)
    assert (await client.post({**ASK, "model": "nick"})).status == 404
    push_policy(gateway, Policy(aliases=(Alias(name="nick", pools=(WeightedPool(model="big"),)),)))
    assert (await client.post({**ASK, "model": "nick"})).status == 200
    assert len(big.seen) == 1


async def test_name_with_letters_beyond_latin_breaks_no_header(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    name = "模型-é-ж"
    policy = Policy(aliases=(Alias(name="nick", pools=(WeightedPool(model=name),)),))
    gateway = await make_gateway(policy=policy, endpoints=[endpoint(upstream, "r0", name)])
    client = await connect(gateway)
    for _ in range(2):
        response = await client.post({**ASK, "model": "nick"})
        assert (response.status, response.json()) == (200, {"answer": 4.2})
        assert response.headers["x-longboat-model"].isprintable()
    assert model_of(upstream.seen[0]) == name


async def test_canary_keeps_each_user_and_gives_each_model_its_part(two_models: Any, connect: Any) -> None:
    pools = (WeightedPool(model="tiny", weight=3), WeightedPool(model="big", weight=1))
    gateway, tiny, big = await two_models(Policy(aliases=(Alias(name="split", pools=pools),)))
    client = await connect(gateway)
    for user in range(60):
        ask = {"model": "split", "user": f"user-{user}"}
        assert len({await answering(client, **ask) for _ in range(3)}) == 1
    assert 0 < len(big.seen) < len(tiny.seen)


@pytest.mark.parametrize(
    ("rule", "matches", "misses"),
    [
        ({"fields": {"quality": "high"}}, {"quality": "high"}, {"quality": "low"}),
        ({"fields": {"store": "true"}}, {"store": True}, {"store": False}),
        ({"fields": {"quality": "*"}}, {"quality": 7}, {}),
        ({"min_prompt_tokens": 100}, {"messages": [{"role": "user", "content": "x" * 800}]}, {}),
        ({"min_context_tokens": 500}, {"max_tokens": 600}, {"max_tokens": 5}),
        ({"model": "tiny"}, {}, None),
    ],
)
async def test_rule_by_what_the_body_holds(
    rule: dict[str, Any], matches: dict[str, Any], misses: dict[str, Any] | None, two_models: Any, connect: Any
) -> None:
    gateway, _, big = await two_models(Policy(rules=(RouteRule(to="big", **rule),)))
    client = await connect(gateway)
    assert await answering(client, **matches) == "b0"
    assert model_of(big.seen[0]) == "big"
    if misses is not None:
        assert await answering(client, **misses) == "r0"


async def test_rule_by_header(two_models: Any, connect: Any) -> None:
    gateway, _, _ = await two_models(Policy(rules=(RouteRule(to="big", headers={"X-Team": "search"}),)))
    client = await connect(gateway)
    assert await answering(client, "x-team: search\r\n") == "b0"
    assert await answering(client, "x-team: other\r\n") == "r0"
    assert await answering(client) == "r0"


async def test_rule_by_tenant_and_tag(two_models: Any, connect: Any) -> None:
    rules = (RouteRule(to="big", tenants=("gold",)), RouteRule(to="big", tags=("beta",)))
    tenants = (TenantPolicy(name="gold"), TenantPolicy(name="try", tags=("beta",)), TenantPolicy(name="rest"))
    policy, keys = keyed(*tenants, rules=rules)
    gateway, _, _ = await two_models(policy)
    client = await connect(gateway)
    assert [await answering(client, key) for key in keys] == ["b0", "b0", "r0"]


async def test_fallback_answers_where_the_first_cannot_and_says_so(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    spare, dead = endpoint(upstream, "s0", "spare"), endpoint(refusing_url(), "d0", "dead")
    unready = endpoint(upstream, "u0", "unready", ready=False)
    policy = Policy(fallbacks={"unready": ("dead", "spare"), "dead": ("spare",)})
    gateway = await make_gateway(policy=policy, endpoints=[spare, dead, unready])
    client = await connect(gateway)
    for asked, number in (("dead", "1"), ("unready", "2")):
        response = await client.post({**ASK, "model": asked})
        assert (response.status, response.headers["x-longboat-model"]) == (200, "spare")
        assert response.headers["x-longboat-fallback"] == number
    assert {model_of(seen) for seen in upstream.seen} == {"spare"}
    fallbacks = gateway.state.metrics.snapshot()["fallbacks"]
    assert ["dead", "spare", 1] in fallbacks
    gateway.state.table.pool("spare").upstreams[0].ready = False
    assert (await client.post({**ASK, "model": "unready"})).status == 503


async def test_fallback_to_the_name_that_was_asked_for_is_marked_too(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy = Policy(rules=(RouteRule(to="dead", model="tiny"),), fallbacks={"dead": ("tiny",)})
    gateway = await make_gateway(
        await make_upstream(), policy=policy, endpoints=[endpoint(refusing_url(), "d0", "dead")]
    )
    response = await (await connect(gateway)).post(ASK)
    assert (response.status, response.headers["x-longboat-fallback"]) == (200, "1")


async def test_fallback_takes_over_from_a_full_queue(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    busy, spare = await make_upstream(until_closed), await make_upstream()
    policy = Policy(fallbacks={"tiny": ("spare",)}, queue=QueuePolicy(max_waiting=0))
    gateway = await make_gateway(busy, policy=policy, endpoints=[endpoint(spare, "s0", "spare")], max_outstanding=1)
    (await connect(gateway)).send(post_bytes(ASK))
    await eventually(lambda: len(busy.seen) == 1, "the only slot is taken")
    response = await (await connect(gateway)).post(ASK)
    assert (response.status, response.headers["x-longboat-model"]) == (200, "spare")


async def test_no_fallback_after_the_first_byte(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def one_then_gone(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(event("a")))
        seen.writer.transport.abort()

    spare = await make_upstream()
    policy = Policy(fallbacks={"tiny": ("spare",)})
    gateway = await make_gateway(
        await make_upstream(one_then_gone), policy=policy, endpoints=[endpoint(spare, "s0", "spare")]
    )
    response = await (await connect(gateway)).post({**ASK, "stream": True})
    assert response.body.startswith(event("a"))
    assert b"engine_lost" in response.body
    assert not spare.seen


async def test_fallback_gets_the_whole_body_again(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def hang_up(seen: Seen) -> None:
        seen.writer.transport.abort()

    spare = await make_upstream()
    gateway = await make_gateway(
        await make_upstream(hang_up),
        policy=Policy(fallbacks={"tiny": ("spare",)}),
        endpoints=[endpoint(spare, "s0", "spare")],
    )
    response = await (await connect(gateway)).post({**ASK, "stream": True, "seed": 7})
    assert response.status == 200
    sent = json.loads(spare.seen[0].body)
    assert sent == {**ASK, "model": "spare", "stream": True, "seed": 7, "stream_options": {"include_usage": True}}


async def test_routing_decision_is_kept_for_the_admin(two_models: Any, connect: Any) -> None:
    gateway, _, _ = await two_models(Policy(rules=(RouteRule(to="big", fields={"quality": "high"}),)))
    client = await connect(gateway)
    await client.post({**ASK, "quality": "high"}, headers="x-request-id: mine\r\n")
    shown = (await client.get("/admin/v1/requests/mine")).json()
    assert "rule 1" in json.dumps(shown)
