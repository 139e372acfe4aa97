"""Whose request it is: keys, what a tenant may ask for, and how the answer says no."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest
from gateway_lab import endpoint, keyed, push_policy

from longboat.core.policy import ALLOWABLE_FIELDS, ANONYMOUS, Alias, Policy, TenantPolicy, WeightedPool
from longboat.gateway.limits.keys import new_key

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


async def test_request_without_a_key_is_refused_in_the_shape_of_its_api(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, _ = keyed(TenantPolicy(name="a"))
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream, policy=policy))
    openai = await client.post(ASK)
    assert (openai.status, openai.code) == (401, "missing_api_key")
    assert openai.json()["error"]["type"] == "authentication_error"
    anthropic = await client.post({**ASK, "max_tokens": 5}, "/v1/messages")
    document = anthropic.json()
    assert (anthropic.status, document["type"]) == (401, "error")
    assert document["error"]["type"] == "authentication_error"
    assert document["request_id"] == anthropic.headers["x-request-id"]
    assert (await client.get("/v1/models")).status == 401
    assert not upstream.seen


@pytest.mark.parametrize(
    "line", ["authorization: Bearer {}", "authorization: bearer {}", "x-api-key: {}", "api-key: {}"]
)
async def test_key_may_come_in_the_headers_of_all_clients(
    line: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (bearer,) = keyed(TenantPolicy(name="a"))
    key = bearer.split()[2]
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream, policy=policy))
    assert (await client.post(ASK, headers=line.format(key) + "\r\n")).status == 200
    assert key.encode() not in upstream.seen[0].head
    wrong = await client.post(ASK, headers=line.format(key + "x") + "\r\n")
    assert wrong.status == 401 and wrong.code != "missing_api_key"


async def test_key_beside_another_schemes_authorization_is_found(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (bearer,) = keyed(TenantPolicy(name="a"))
    client = await connect(await make_gateway(await make_upstream(), policy=policy))
    both = f"authorization: Basic dXNlcjpwYXNz\r\nx-api-key: {bearer.split()[2]}\r\n"
    assert (await client.post(ASK, headers=both)).status == 200


async def test_expired_key_is_told_so(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    key, record = new_key("a", now_s=0.0, expires_s=time.time() - 1)
    policy = Policy(auth="keys", tenants=(TenantPolicy(name="a"),), keys=(record,))
    client = await connect(await make_gateway(await make_upstream(), policy=policy))
    response = await client.post(ASK, headers=f"authorization: Bearer {key}\r\n")
    assert response.status == 401
    assert "expired" in response.json()["error"]["message"]


async def test_key_is_revoked_and_made_by_a_new_policy(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    policy, (old,) = keyed(TenantPolicy(name="a"))
    gateway = await make_gateway(await make_upstream(), policy=policy)
    client = await connect(gateway)
    assert (await client.post(ASK, headers=old)).status == 200
    renewed, (new,) = keyed(TenantPolicy(name="a"))
    push_policy(gateway, renewed)
    assert (await client.post(ASK, headers=old)).status == 401
    assert (await client.post(ASK, headers=new)).status == 200


async def test_models_list_shows_only_what_the_tenant_may_ask_for(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    some, every = TenantPolicy(name="some", models=("tiny", "nick")), TenantPolicy(name="every")
    aliases = (Alias(name="nick", pools=(WeightedPool(model="big"),)),)
    policy, (few, all_) = keyed(some, every, aliases=aliases)
    upstream = await make_upstream()
    gateway = await make_gateway(upstream, policy=policy, endpoints=[endpoint(upstream, "b0", "big")])
    client = await connect(gateway)
    listed = [m["id"] for m in (await client.get("/v1/models", few)).json()["data"]]
    assert listed == ["tiny", "nick"]
    assert {m["id"] for m in (await client.get("/v1/models", all_)).json()["data"]} == {"tiny", "big", "nick"}
    hidden = await client.get("/v1/models/big", few)
    assert (hidden.status, "'big'" in hidden.json()["error"]["message"].partition("Served")[2]) == (404, False)


async def test_model_that_is_not_allowed_is_a_403(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    policy, (key,) = keyed(TenantPolicy(name="a", models=("tiny",)))
    upstream = await make_upstream()
    gateway = await make_gateway(upstream, policy=policy, endpoints=[endpoint(upstream, "b0", "big")])
    client = await connect(gateway)
    response = await client.post({**ASK, "model": "big"}, headers=key)
    assert (response.status, response.code) == (403, "model_not_allowed")
    assert "'big'" not in response.json()["error"]["message"].partition("allows:")[2]
    assert not upstream.seen


@pytest.mark.parametrize("max_tokens", [101, 10**15])
async def test_longer_context_than_allowed_is_refused(
    max_tokens: int, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (key,) = keyed(TenantPolicy(name="a", max_context_tokens=100))
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream, policy=policy))
    response = await client.post({**ASK, "max_tokens": max_tokens}, headers=key)
    assert (response.status, response.code) == (400, "context_length_exceeded")
    long = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": -4000}
    assert (await client.post(long, headers=key)).code == "context_length_exceeded"
    assert (await client.post({**ASK, "max_tokens": 10}, headers=key)).status == 200


@pytest.mark.parametrize("field", ["kv_transfer_params", "priority", "bootstrap_host"])
async def test_fields_of_the_fleet_are_refused_with_and_without_keys(
    field: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (key,) = keyed(TenantPolicy(name="a"))
    upstream = await make_upstream()
    for given in (policy, Policy()):
        client = await connect(await make_gateway(upstream, policy=given))
        response = await client.post({**ASK, field: 1}, headers=key)
        assert (response.status, response.code, response.json()["error"]["param"]) == (400, "fleet_field", field)
    assert not upstream.seen


@pytest.mark.parametrize("field", ALLOWABLE_FIELDS)
async def test_a_trusted_tenant_may_send_the_fields_that_it_is_allowed(
    field: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    trusted, other = TenantPolicy(name="a", allow_fields=(field,)), TenantPolicy(name="b")
    policy, (key, other_key) = keyed(trusted, other)
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream, policy=policy))
    assert (await client.post({**ASK, field: 1}, headers=key)).status == 200
    assert json.loads(upstream.seen[0].body)[field] == 1
    refused = await client.post({**ASK, field: 1}, headers=other_key)
    assert (refused.status, refused.code) == (400, "fleet_field")
    assert "allow_fields" in refused.json()["error"]["message"]
    assert (await client.post({**ASK, field: 1, "bootstrap_host": 1}, headers=key)).code == "fleet_field"


async def test_without_keys_the_anonymous_tenant_may_be_allowed_fields(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy = Policy(tenants=(TenantPolicy(name=ANONYMOUS, allow_fields=("priority",)),))
    client = await connect(await make_gateway(await make_upstream(), policy=policy))
    for _ in range(2):  # the second time its head is known
        assert (await client.post({**ASK, "priority": 1})).status == 200
    assert (await client.post({**ASK, "request_id": "x"})).code == "fleet_field"


async def test_tenant_that_was_removed_keeps_its_running_request(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (key,) = keyed(TenantPolicy(name="a", concurrent_requests=1))
    gateway: Any = None

    async def removed_meanwhile(seen: Any) -> None:
        push_policy(gateway, dataclasses.replace(policy, tenants=(), keys=()))
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    gateway = await make_gateway(await make_upstream(removed_meanwhile), policy=policy)
    client = await connect(gateway)
    assert (await client.post(ASK, headers=key)).body == b"ok"
    assert (await client.post(ASK, headers=key)).status == 401
    push_policy(gateway, policy)
    assert (await client.post(ASK, headers=key)).status == 200  # its place was given back
