"""What Anthropic's and OpenAI's clients read of heads, and the list of models as Anthropic's clients read it."""

from __future__ import annotations

from typing import Any

import pytest
from fake_upstream import Seen
from gateway_lab import keyed

from longboat.core.policy import CorsPolicy, Policy, TenantPolicy
from longboat.gateway.http.error_responses import quota_refused
from longboat.routing.capacity.quota import Denied

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
VERSION = "Anthropic-Version: 2023-06-01\r\n"
GIVEN = "x-request-id: mine\r\n"


async def test_messages_name_their_request_as_anthropics_clients_read_it(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def provider(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nRequest-Id: theirs\r\n\r\n{}")

    policy = Policy(cors=CorsPolicy(origins=("*",)))
    client = await connect(await make_gateway(await make_upstream(provider), policy=policy))
    for document, status in ((ASK, 200), ({**ASK, "model": "none"}, 404)):
        response = await client.post(document, "/v1/messages", f"{GIVEN}origin: https://app.example\r\n")
        assert (response.status, response.headers["request-id"]) == (status, "mine")
        assert response.headers["x-request-id"] == "mine"
        assert "access-control-allow-origin" in response.headers
    assert "request-id" not in (await client.post(ASK)).headers


async def test_models_have_both_shapes_for_anthropics_clients(make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway("http://127.0.0.1:1"))
    plain = (await client.get("/v1/models")).json()
    response = await client.get("/v1/models?limit=20", f"{VERSION}{GIVEN}")
    listed = response.json()
    (model,) = listed["data"]
    assert response.headers["request-id"] == "mine"
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "tiny", "tiny")
    assert (model["type"], model["display_name"]) == ("model", "tiny")
    assert model["created_at"].endswith("Z")
    assert {name: model[name] for name in plain["data"][0]} == plain["data"][0]
    assert "type" not in plain["data"][0]
    assert "has_more" not in plain
    assert (await client.get("/v1/models/tiny", VERSION)).json() == model


@pytest.mark.parametrize(("path", "status"), [("/v1/models/none", 404), ("/v1/models", 401)])
async def test_errors_of_models_have_the_shape_of_the_client(
    path: str, status: int, make_gateway: Any, connect: Any
) -> None:
    policy, (line,) = keyed(TenantPolicy(name="a"))
    client = await connect(await make_gateway("http://127.0.0.1:1", policy=policy))
    key = line if status == 404 else ""
    error = await client.get(path, f"{key}{VERSION}")
    assert (error.status, error.json()["type"]) == (status, "error")
    assert "code" in (await client.get(path, key)).json()["error"]


@pytest.mark.parametrize("limits", [{"tokens_per_minute": 10}, {"tokens_per_day": 10}])
async def test_a_limit_that_a_request_alone_exceeds_is_not_tried_again(
    limits: dict[str, int], make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy = Policy(tenants=(TenantPolicy(name="anonymous", **limits),))
    client = await connect(await make_gateway(await make_upstream(), policy=policy))
    refused = await client.post({**ASK, "max_tokens": 100})
    assert (refused.status, refused.headers["x-should-retry"]) == (429, "false")


@pytest.mark.parametrize(("wait_s", "value"), [(3600, "false"), (61, "false"), (60, None), (1, None)])
def test_a_limit_that_frees_no_room_within_a_minute_is_not_tried_again(wait_s: int, value: str | None) -> None:
    denied = Denied(limit="tokens_per_day", value=9, limit_value=9, retry_after_s=wait_s)
    head = quota_refused(denied, "a").encode(request_id="r", close=False)
    assert (b"x-should-retry: false\r\n" in head) == (value == "false")
    assert b"retry-after: %d\r\n" % wait_s in head
