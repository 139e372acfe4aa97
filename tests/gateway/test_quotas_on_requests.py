"""Tenants' limits on real requests: what is refused and how, and what is given back when a request ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fake_upstream import DEADLINE_S, STREAM_HEAD, Seen, chunk, event, until_closed
from gateway_lab import endpoint, eventually, keyed, post_bytes, push_policy, settled, table

from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.process.server import Gateway

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 100}  # about 200 tokens
ASK_STREAM = {**ASK, "stream": True}


def anonymous(**limits: Any) -> Policy:
    return Policy(tenants=(TenantPolicy(name="anonymous", **limits),))


def told(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def counts(gateway: Gateway, tenant: str = "anonymous") -> Any:
    return settled(gateway).accounting.counters.counts_of(tenant, time.time())


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "tokens_per_day"])
async def test_limit_is_a_429_that_says_which_and_when(
    limit: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    most = 2 if limit == "requests_per_minute" else 500  # two of about 200
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream, policy=anonymous(**{limit: most})))
    assert [(await client.post(ASK)).status for _ in range(2)] == [200, 200]
    response = await client.post(ASK)
    assert (response.status, response.code) == (429, limit)
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(response.headers["retry-after"]) <= 86_400
    assert len(upstream.seen) == 2


async def test_request_that_never_fits_has_no_retry_after(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream(), policy=anonymous(tokens_per_minute=100)))
    response = await client.post(ASK)
    assert (response.status, response.code) == (429, "tokens_per_minute")
    assert "retry-after" not in response.headers


async def test_refusal_of_messages_has_anthropics_shape(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream(), policy=anonymous(requests_per_minute=1)))
    await client.post(ASK, "/v1/messages")
    response = await client.post(ASK, "/v1/messages")
    assert (response.status, response.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(response.headers["retry-after"]) >= 1


async def test_limits_are_each_tenants_own_and_change_with_the_policy(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (one, two) = keyed(
        TenantPolicy(name="one", requests_per_minute=1), TenantPolicy(name="two", requests_per_minute=1)
    )
    gateway = await make_gateway(await make_upstream(), policy=policy)
    client = await connect(gateway)
    assert [(await client.post(ASK, headers=key)).status for key in (one, one, two, two)] == [200, 429, 200, 429]
    more, _ = keyed(TenantPolicy(name="one", requests_per_minute=2), TenantPolicy(name="two", requests_per_minute=1))
    push_policy(gateway, Policy(auth="keys", tenants=more.tenants, keys=policy.keys))
    assert [(await client.post(ASK, headers=key)).status for key in (one, one, two)] == [200, 429, 429]


async def test_limits_are_split_among_the_gateways_that_a_new_policy_tells_of(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream(), policy=anonymous(requests_per_minute=4))
    client = await connect(gateway)
    assert [(await client.post(ASK)).status for _ in range(2)] == [200, 200]
    push_policy(gateway, Policy(tenants=gateway.state.policy.tenants, num_gateways=2))
    assert (await client.post(ASK)).status == 429


async def test_concurrent_requests_are_given_back_however_they_end(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def as_asked(seen: Seen) -> None:
        if b"wait" in seen.body:
            await until_closed(seen)
        elif b"break" in seen.body:
            await seen.send(STREAM_HEAD + chunk(event("a")))
            seen.writer.transport.abort()
        elif b"complain" in seen.body:
            await seen.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}")
        else:
            await seen.send(told(b"{}"))

    upstream = await make_upstream(as_asked)
    gateway = await make_gateway(upstream, policy=anonymous(concurrent_requests=1))
    leaving = await connect(gateway)
    leaving.send(post_bytes({**ASK, "user": "wait"}))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    client = await connect(gateway)
    refused = await client.post(ASK)
    assert (refused.status, refused.code) == (429, "concurrent_requests")
    leaving.abort()
    await eventually(lambda: counts(gateway).running == 0, "the one that left is counted out")
    for user in ("complain", "", "break", ""):
        ended = await (await connect(gateway)).post({**ASK_STREAM, "user": user})
        assert ended.status in (200, 400)
        assert counts(gateway).running == 0
    unready = table(endpoint(upstream, ready=False), version=2)
    gateway.state.offer_table("e", unready)
    assert (await client.post(ASK)).status == 503
    assert counts(gateway).running == 0


async def test_estimate_is_replaced_by_what_was_used(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    body = b'{"usage": {"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97}}'

    async def answer(seen: Seen) -> None:
        assert counts(gateway).tokens >= 200
        await seen.send(told(body))

    gateway = await make_gateway(await make_upstream(answer))
    assert (await (await connect(gateway)).post(ASK)).status == 200
    now = counts(gateway)
    assert (now.tokens, now.tokens_today, now.requests) == (97, 97, 1)


@pytest.mark.parametrize("status", [b"400 Bad Request", b"503 Service Unavailable"])
async def test_nothing_is_paid_where_the_engine_refused(
    status: bytes, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def refuse(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 %b\r\ncontent-length: 2\r\n\r\n{}" % status)

    gateway = await make_gateway(await make_upstream(refuse))
    await (await connect(gateway)).post({**ASK, "max_tokens": 100_000})
    assert (counts(gateway).tokens, counts(gateway).requests) == (0, 1)


async def test_nothing_is_paid_by_who_leaves_the_queue(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream(until_closed)
    policy, (first, second) = keyed(TenantPolicy(name="a"), TenantPolicy(name="b"))
    gateway = await make_gateway(upstream, policy=policy, max_outstanding=1)
    (await connect(gateway)).send(post_bytes(ASK, headers=first))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    waiting = await connect(gateway)
    waiting.send(post_bytes(ASK, headers=second))
    await eventually(lambda: gateway.state.table.pools()[0].num_waiting == 1, "it waits")
    assert counts(gateway, "b").tokens >= 200
    waiting.abort()
    await eventually(lambda: counts(gateway, "b").running == 0, "it left")
    assert counts(gateway, "b").tokens == 0


async def test_answer_that_was_broken_off_is_paid_by_its_events(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def three_events(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + b"".join(chunk(event("a")) for _ in range(3)))
        await until_closed(seen)

    gateway = await make_gateway(await make_upstream(three_events))
    client = await connect(gateway)
    client.send(post_bytes({**ASK_STREAM, "max_tokens": 100_000}))
    await client.head()
    received = b""
    while received.count(b"data: ") < 3:
        received += await client.read_some()
    client.abort()
    await eventually(lambda: counts(gateway).running == 0, "it is counted out")
    assert 100 <= counts(gateway).tokens <= 200  # the estimated prompt and three tokens


@pytest.mark.parametrize("max_tokens", [2**62, -(2**62)])
async def test_absurd_numbers_break_no_count(
    max_tokens: int, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream(), policy=anonymous(tokens_per_day=10**6, tokens_per_minute=10**6))
    client = await connect(gateway)
    assert (await client.post({**ASK, "max_tokens": max_tokens, "n": 2**62})).status == 400
    absurd = await client.post({**ASK, "max_tokens": max_tokens, "n": 2**14})
    assert absurd.status in (200, 429)
    assert counts(gateway).running == 0
    assert counts(gateway).tokens_today >= 0
    assert (await client.post(ASK)).status == 200
