"""Web pages of other origins: off, for named origins, for all."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_lab import RawClient, keyed, post_bytes, push_policy

from longboat.core.policy import CorsPolicy, Policy, TenantPolicy

ASK = {"model": "tiny", "messages": []}
PAGE = "https://app.example"
ORIGIN = f"origin: {PAGE}\r\n"
PREFLIGHT = f"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{ORIGIN}access-control-request-method: POST\r\n"
GRANT = "access-control-allow-origin"


async def preflight(client: RawClient, more: str = "") -> tuple[int, dict[str, str]]:
    client.send(f"{PREFLIGHT}{more}\r\n".encode())
    status, headers = await client.head()
    await client.reader.readexactly(int(headers.get("content-length", 0)))
    return status, headers


def cors(*origins: str, **changes: Any) -> Policy:
    return Policy(cors=CorsPolicy(origins=origins), **changes)


@pytest.mark.parametrize("policy", [Policy(), cors("https://other.example")])
async def test_origin_that_is_not_named_gets_no_grant(
    policy: Policy, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def generous(seen: Any) -> None:  # engines grant it to all by default
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nAccess-Control-Allow-Origin: *\r\n\r\n{}")

    client = await connect(await make_gateway(await make_upstream(generous), policy=policy))
    status, headers = await preflight(client)
    assert (status, GRANT in headers) == (405, False)
    response = await client.post(ASK, headers=ORIGIN)
    assert (response.status, GRANT in response.headers) == (200, False)


@pytest.mark.parametrize(("policy", "granted"), [(cors(PAGE), PAGE), (cors("*"), "*")])
async def test_named_origin_is_granted_on_every_kind_of_answer(
    policy: Policy, granted: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream, policy=policy))
    answers = [
        await client.post(ASK, headers=ORIGIN),
        await client.post({**ASK, "model": "nope"}, headers=ORIGIN),
        await client.get("/v1/models", ORIGIN),
        await client.get("/nowhere", ORIGIN),
    ]
    assert [a.status for a in answers] == [200, 404, 200, 404]
    assert {a.headers[GRANT] for a in answers} == {granted}
    assert all("retry-after" in a.headers["access-control-expose-headers"] for a in answers)
    assert upstream.seen[0].header("origin") is None
    assert GRANT not in (await client.post(ASK)).headers


async def test_preflight_needs_no_key_and_lets_the_key_through(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (key,) = keyed(TenantPolicy(name="a"), cors=CorsPolicy(origins=(PAGE,), max_age_s=77))
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream, policy=policy))
    status, headers = await preflight(client, "access-control-request-headers: authorization, x-tag\r\n")
    assert (status, headers[GRANT], headers["access-control-max-age"]) == (204, PAGE, "77")
    assert "POST" in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"] == "authorization, x-tag"
    refused = await client.post(ASK, headers=ORIGIN)
    assert (refused.status, refused.headers[GRANT]) == (401, PAGE)  # the page can read why
    assert (await client.post(ASK, headers=ORIGIN + key)).status == 200


async def test_preflight_keeps_its_place_among_pipelined_requests(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway(await make_upstream(), policy=cors(PAGE)))
    client.send(post_bytes(ASK) + f"{PREFLIGHT}\r\n".encode() + post_bytes(ASK))
    assert (await client.response()).status == 200
    assert (await client.head())[0] == 204
    assert (await client.response()).status == 200


async def test_origins_change_with_the_policy(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway(await make_upstream())
    client = await connect(gateway)
    assert GRANT not in (await client.post(ASK, headers=ORIGIN)).headers
    push_policy(gateway, cors(PAGE))
    assert (await client.post(ASK, headers=ORIGIN)).headers[GRANT] == PAGE
