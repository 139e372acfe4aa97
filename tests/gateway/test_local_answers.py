"""What the gateway responds itself: health as vLLM reports it, its version, its load, its OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_upstream import OK_JSON, Seen
from gateway_lab import config, endpoint, keyed, table

from longboat import __version__
from longboat.core.policy import Alias, Policy, TenantPolicy, WeightedPool
from longboat.gateway.process.server import Gateway


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health_is_that_of_vllm(path: str, make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway("http://127.0.0.1:1")
    client = await connect(gateway)
    response = await client.get(path)
    assert (response.status, response.body) == (200, b"")
    assert "content-type" not in response.headers
    client.send(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    assert (await client.head())[0] == 200
    gateway.state.table.offer("e", table(endpoint("http://127.0.0.1:1", ready=False), version=2))
    assert ((response := await client.get(path)).status, response.body) == (503, b"")


async def test_health_before_the_first_table(connect: Any) -> None:
    gateway = Gateway(config())
    await gateway.start()
    assert (await (await connect(gateway)).get("/health")).status == 503
    gateway.stop(0.0)
    await gateway.stopped.wait()


async def test_ping_takes_a_post_and_health_does_not(make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway("http://127.0.0.1:1"))
    assert (await client.post({}, "/ping")).status == 200
    refused = await client.post({}, "/health")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_version_is_longboats_and_needs_no_key(make_gateway: Any, connect: Any) -> None:
    policy, _ = keyed(TenantPolicy(name="a"))
    client = await connect(await make_gateway("http://127.0.0.1:1", policy=policy))
    assert (await client.get("/version")).json() == {"version": __version__}
    assert (await client.get("/health")).status == 200


async def test_load_counts_the_requests_in_progress(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    go_on = asyncio.Event()

    async def serve(seen: Seen) -> None:
        await go_on.wait()
        await seen.send(OK_JSON)

    upstream = await make_upstream(serve)
    gateway = await make_gateway(upstream)
    busy, client = await connect(gateway), await connect(gateway)
    assert (await client.get("/load")).json() == {"server_load": 0}
    pending = asyncio.ensure_future(busy.post({"model": "tiny"}))
    await upstream.arrived.wait()
    assert (await client.get("/load")).json() == {"server_load": 1}
    go_on.set()
    assert (await pending).status == 200
    assert (await client.get("/load")).json() == {"server_load": 0}


async def test_load_is_for_those_who_may_know(make_gateway: Any, connect: Any) -> None:
    policy, (line,) = keyed(TenantPolicy(name="a"))
    client = await connect(await make_gateway("http://127.0.0.1:1", policy=policy))
    assert (await client.get("/load", line)).status == 200
    from_elsewhere = "x-forwarded-for: 10.0.0.9\r\n"
    assert (await client.get("/load", from_elsewhere)).status == 401


async def test_tokenizer_info_is_the_engines(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    tiny, other = await make_upstream(), await make_upstream()
    gateway = await make_gateway(tiny)
    client = await connect(gateway)
    assert (await client.get("/tokenizer_info")).json() == {"answer": 4.2}  # there is one model
    assert tiny.seen[0].head.startswith(b"GET /tokenizer_info HTTP/1.1\r\n")
    endpoints = (endpoint(tiny), endpoint(other, "r1", "other"))
    gateway.state.offer_table("e", table(*endpoints, models=("tiny", "other"), version=2))
    unnamed = await client.get("/tokenizer_info")
    assert (unnamed.status, unnamed.code) == (400, "model_missing")
    assert (await client.get("/tokenizer_info?model=other")).status == 200
    assert len(other.seen) == 1
    client.send(b"HEAD /tokenizer_info HTTP/1.1\r\nhost: x\r\n\r\n")
    status, headers = await client.head()
    assert (status, headers["allow"]) == (405, "GET")
    unknown = await client.get("/tokenizer_info?model=none")
    assert (unknown.status, unknown.code) == (404, "model_not_found")


async def test_tokenizer_info_of_a_model_that_the_key_does_not_allow(make_gateway: Any, connect: Any) -> None:
    policy, (line,) = keyed(TenantPolicy(name="a", models=("other",)))
    client = await connect(await make_gateway("http://127.0.0.1:1", policy=policy))
    refused = await client.get("/tokenizer_info?model=tiny", line)
    assert (refused.status, refused.code) == (404, "model_not_found")
    assert (await client.get("/tokenizer_info?model=tiny")).status == 401


async def test_a_model_is_listed_with_the_context_that_all_its_replicas_have(make_gateway: Any, connect: Any) -> None:
    url = "http://127.0.0.1:1"
    replicas = [endpoint(url, f"r{at}", context_tokens=tokens) for at, tokens in enumerate((4096, 2048, 0))]
    other = endpoint(url, "o", "other")
    policy = Policy(aliases=(Alias(name="gpt", pools=(WeightedPool(model="tiny"), WeightedPool(model="other"))),))
    gateway = await make_gateway(url, policy=policy)
    gateway.state.table.offer("e", table(*replicas, other, version=2, models=("tiny", "other")))
    client = await connect(gateway)
    cards = (await client.get("/v1/models")).json()["data"]
    assert {card["id"]: card.get("max_model_len") for card in cards} == {"tiny": 2048, "other": None, "gpt": 2048}
    assert "max_model_len" not in cards[1], "an engine that does not say it gets no number, not even null"
    assert (await client.get("/v1/models/tiny")).json()["max_model_len"] == 2048
