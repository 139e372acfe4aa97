"""External models in one gateway: what their addresses get, what clients get, and what happens when they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import STREAM_HEAD, FakeUpstream, Seen
from gateway_lab import RawClient, eventually, settled, started_gateway
from outside_lab import (
    ASK,
    END,
    PRICE,
    SECRET,
    MakeProvider,
    answers,
    authority,
    budget,
    delta,
    error,
    model,
    open_policy,
    provider,
)

from longboat.core.policy import Policy
from longboat.gateway.process.server import Gateway

__all__ = ("authority", "provider")  # fixtures

MakeGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def gateway() -> AsyncIterator[MakeGateway]:
    made: list[Gateway] = []

    async def make(policy: Policy, *engines: FakeUpstream, **limits: Any) -> Gateway:
        one = await started_gateway(*engines, policy=policy, **limits)
        made.append(one)
        return one

    yield make
    for one in made:
        one.stop(0.0)
        await one.stopped.wait()


async def test_request_goes_out_with_own_name_key_and_path(provider: MakeProvider, gateway: MakeGateway) -> None:
    cloud = await provider()
    made = await gateway(open_policy(model(f"{cloud.url}/openai/v1", headers={"x-team": "blue"})))
    client = await RawClient.to(made)
    private = "cookie: a=b\r\nauthorization: Bearer client-key\r\nx-internal: 1\r\ntraceparent: 00-1-2-3\r\n"
    response = await client.post(ASK, headers=private)
    seen = cloud.seen[0]
    assert response.status == 200
    assert response.json()["id"] == "c1"
    assert seen.head.startswith(b"POST /openai/v1/chat/completions HTTP/1.1\r\n")
    assert json.loads(seen.body) == {**ASK, "model": "big-7"}
    assert seen.header("authorization") == f"Bearer {SECRET}"
    assert (seen.header("host"), seen.header("x-team")) == (f"localhost:{cloud.port}", "blue")
    for name in ("cookie", "x-internal", "traceparent"):
        assert seen.header(name) is None
    assert response.headers["x-longboat-external"] == "openai"
    assert response.headers["x-longboat-replica"] == f"localhost:{cloud.port}"


async def test_anthropic_address_gets_its_own_headers(provider: MakeProvider, gateway: MakeGateway) -> None:
    cloud = await provider()
    made = await gateway(open_policy(model(cloud.url, api="anthropic")))
    client = await RawClient.to(made)
    body = {**ASK, "max_tokens": 5}
    assert (await client.post(body, path="/v1/messages")).status == 200
    seen = cloud.seen[0]
    assert seen.head.startswith(b"POST /v1/messages HTTP/1.1\r\n")
    assert (seen.header("x-api-key"), seen.header("authorization")) == (SECRET, None)
    assert seen.header("anthropic-version") == "2023-06-01"
    await client.post(body, path="/v1/messages", headers="anthropic-version: 2030-01-01\r\n")
    assert cloud.seen[1].header("anthropic-version") == "2030-01-01"
    refused = await client.post(ASK)
    assert (refused.status, refused.code) == (404, "path_not_offered")


async def test_stream_is_relayed_and_its_connection_is_kept(provider: MakeProvider, gateway: MakeGateway) -> None:
    async def script(seen: Seen) -> None:
        await seen.send(STREAM_HEAD)
        await asyncio.sleep(0.2)  # a slow first token
        for word in ("a", "b", "c"):
            await seen.send(delta(word))
        await seen.send(END)

    cloud = await provider(script)
    made = await gateway(open_policy(model(cloud.url)))
    client = await RawClient.to(made)
    for _ in range(3):
        response = await client.post({**ASK, "stream": True})
        assert response.body.count(b'"content"') == 3
        assert response.body.endswith(b"data: [DONE]\n\n")
    assert cloud.connections == 1


async def test_untrusted_certificate_is_refused(provider: MakeProvider, gateway: MakeGateway) -> None:
    cloud = await provider(name="other.example")
    client = await RawClient.to(await gateway(open_policy(model(cloud.url))))
    response = await client.post(ASK)
    assert (response.status, response.code) == (503, "engine_unreachable")
    assert b"certificate" in response.body
    assert not cloud.seen


async def test_errors_without_another_model_are_the_clients(provider: MakeProvider, gateway: MakeGateway) -> None:
    cloud = await provider(answers("400 Bad Request", document=error("too long")))
    client = await RawClient.to(await gateway(open_policy(model(cloud.url))))
    response = await client.post(ASK)
    assert (response.status, response.json()) == (400, error("too long"))
    cloud.script = answers("503 Service Unavailable", document=error("busy"))
    response = await client.post(ASK)
    assert (response.status, response.json()) == (503, error("busy"))
    assert len(cloud.seen) == 2  # an error of the provider is not asked for again


async def test_429_is_kept_to_for_as_long_as_it_says(provider: MakeProvider, gateway: MakeGateway) -> None:
    cloud = await provider(answers("429 Too Many Requests", "retry-after: 2\r\n", error("slow down")))
    client = await RawClient.to(await gateway(open_policy(model(cloud.url))))
    first = await client.post(ASK)
    assert (first.status, first.headers["retry-after"]) == (429, "2")
    held = await client.post(ASK)
    assert (held.status, held.code) == (429, "external_busy")
    assert 1 <= int(held.headers["retry-after"]) <= 2
    assert len(cloud.seen) == 1
    cloud.script = answers()
    await asyncio.sleep(2.1)
    assert (await client.post(ASK)).status == 200


@pytest.mark.parametrize("status", ["401 Unauthorized", "402 Payment Required", "429 Too Many Requests", "500 Error"])
async def test_second_address_takes_what_the_first_turns_away(
    provider: MakeProvider, gateway: MakeGateway, status: str
) -> None:
    bad, good = await provider(answers(status, document=error("no"))), await provider()
    client = await RawClient.to(await gateway(open_policy(model(bad.url, good.url))))
    for _ in range(4):
        assert (await client.post(ASK)).status == 200
    assert len(bad.seen) == 1
    assert len(good.seen) == 4


async def test_wrong_key_is_not_blamed_on_the_client(provider: MakeProvider, gateway: MakeGateway) -> None:
    cloud = await provider(answers("401 Unauthorized", document=error(f"bad key {SECRET}")))
    client = await RawClient.to(await gateway(open_policy(model(cloud.url))))
    response = await client.post(ASK)
    assert (response.status, response.code) == (502, "engine_refused_gateway")
    assert SECRET.encode() not in response.body


async def test_broken_stream_ends_with_an_error(provider: MakeProvider, gateway: MakeGateway) -> None:
    async def script(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + delta("a"))
        seen.writer.transport.abort()

    cloud = await provider(script)
    client = await RawClient.to(await gateway(open_policy(model(cloud.url))))
    response = await client.post({**ASK, "stream": True})
    assert b'"content":"a"' in response.body
    assert b'"error"' in response.body
    assert b"[DONE]" not in response.body


async def test_what_is_not_json_is_passed_on_as_it_is(provider: MakeProvider, gateway: MakeGateway) -> None:
    async def script(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{nonono")

    cloud = await provider(script)
    made = await gateway(open_policy(model(cloud.url, price=PRICE, limits=budget(tokens_per_day=1000))))
    client = await RawClient.to(made)
    assert (await client.post(ASK)).body == b"{nonono"
    assert settled(made).usage.report(1, made.state.clock.unix_s())


async def test_fallback_goes_outside_only_for_tenants_that_allow_it(
    provider: MakeProvider, gateway: MakeGateway
) -> None:
    cloud = await provider()
    policy = open_policy(model(cloud.url), fallbacks={"tiny": ("cloud",)})
    made = await gateway(policy)
    client = await RawClient.to(made)
    response = await client.post({**ASK, "model": "tiny"})
    assert response.status == 200
    assert response.headers["x-longboat-model"] == "cloud"
    assert response.headers["x-longboat-fallback"] == "1"
    assert json.loads(cloud.seen[0].body)["model"] == "big-7"
    closed = await gateway(open_policy(model(cloud.url), external=False, fallbacks={"tiny": ("cloud",)}))
    response = await (await RawClient.to(closed)).post({**ASK, "model": "tiny"})
    assert response.status == 503
    assert len(cloud.seen) == 1


async def test_external_model_falls_back_to_the_fleet(provider: MakeProvider, gateway: MakeGateway) -> None:
    cloud = await provider(answers("429 Too Many Requests", "retry-after: 60\r\n", error("slow down")))
    engine = FakeUpstream()
    await engine.start()
    policy = open_policy(model(cloud.url, limits=budget(requests_per_day=5)), fallbacks={"cloud": ("tiny",)})
    made = await gateway(policy, engine)
    client = await RawClient.to(made)
    for _ in range(3):
        response = await client.post(ASK)
        assert response.status == 200
        assert response.headers["x-longboat-model"] == "tiny"
        assert "x-longboat-external" not in response.headers
    assert len(cloud.seen) == 1
    assert json.loads(engine.seen[0].body)["model"] == "tiny"
    engine.close()


async def test_missing_key_is_said_without_sending(
    provider: MakeProvider, gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = await provider()
    monkeypatch.delenv("LB_TEST_PROVIDER_KEY")
    client = await RawClient.to(await gateway(open_policy(model(cloud.url))))
    response = await client.post(ASK)
    assert (response.status, response.code) == (503, "external_unusable")
    assert b"LB_TEST_PROVIDER_KEY" in response.body
    assert not cloud.seen


async def test_key_file_is_read_again(provider: MakeProvider, gateway: MakeGateway, tmp_path: Path) -> None:
    cloud = await provider()
    file = tmp_path / "key"
    file.write_text("first\n")
    made = await gateway(open_policy(model(cloud.url, api_key_env=None, api_key_file=str(file))))
    client = await RawClient.to(made)
    await client.post(ASK)
    assert cloud.seen[-1].header("authorization") == "Bearer first"
    file.write_text("second-key\n")
    await eventually(lambda: made.state.table.endpoints("cloud")[0].api_key == "second-key", "the new key")  # type: ignore[index]
    await client.post(ASK)
    assert cloud.seen[-1].header("authorization") == "Bearer second-key"


async def test_requests_go_through_a_proxy(
    provider: MakeProvider, gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        there_reader, there = await asyncio.open_connection("127.0.0.1", cloud.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pump(reader, there), _pump(there_reader, writer))

    cloud = await provider()
    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def two_addresses(host: str, *args: Any, **more: Any) -> Any:
        if host != "proxy.test":
            return await resolve(host, *args, **more)
        return [*await resolve("127.0.0.2", *args, **more), *await resolve("127.0.0.1", *args, **more)]

    monkeypatch.setattr(loop, "getaddrinfo", two_addresses)  # nothing listens at the first one
    client = await RawClient.to(await gateway(open_policy(model(cloud.url, proxy=f"http://a%40b:c@proxy.test:{port}"))))
    assert (await client.post(ASK)).status == 200
    assert b"\r\nproxy-authorization: Basic YUBiOmM=\r\n" in asked[0]
    assert asked[0].startswith(f"CONNECT localhost:{cloud.port} HTTP/1.1".encode())
    assert SECRET.encode() not in asked[0]
    proxy.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
