"""How requests get one of their model's replicas: stickiness, accounts that end, explanations, routes, traces."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_lab import REQUESTS, Engine, Reader, streamed
from gateway_lab import push_policy, table

from longboat.core.policy import ANONYMOUS, Policy, RoutingRules
from longboat.gateway.process.server import Gateway
from longboat.gateway.records.routed import Routed, explained
from longboat.routing.policies.contract import Choice
from longboat.routing.policies.cost import Cost
from longboat.routing.prefixes.index import DictIndex
from longboat.routing.prefixes.prompt import Prompt
from longboat.routing.router import Router

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "word " * 200}], "max_tokens": 4}


async def gateway_of(make_gateway: Any, pair: list[Engine], routing: RoutingRules) -> Gateway:
    gateway: Gateway = await make_gateway(policy=Policy(routing=routing))
    gateway.state.offer_table("f", table(*(engine.endpoint(f"r{n}") for n, engine in enumerate(pair))))
    return gateway


async def answered_by(client: Any, gateway: Gateway, **headers: str) -> str:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    response = await client.post(CHAT, headers=lines)
    assert response.status == 200, response.body
    return str(response.headers["x-longboat-replica"])


@pytest.mark.parametrize("sticky", ["header:x-session-id", "cookie:session"])
async def test_sticky_requests_stay_at_one_replica(
    sticky: str, pair: list[Engine], make_gateway: Any, connect: Any
) -> None:
    gateway = await gateway_of(make_gateway, pair, RoutingRules(policy="round_robin", sticky=sticky))
    client = await connect(gateway)
    homes = {}
    for session in ("ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal"):
        headers = {"x_session_id": session, "cookie": f"a=b; session={session}; c=d"}
        found = {await answered_by(client, gateway, **headers) for _ in range(3)}
        assert len(found) == 1
        homes[session] = found.pop()
    assert set(homes.values()) == {"r0", "r1"}  # sessions spread
    assert {await answered_by(client, gateway) for _ in range(2)} == {"r0", "r1"}  # without a session, in turn


async def test_a_session_moves_only_when_its_replica_is_gone(
    pair: list[Engine], make_gateway: Any, connect: Any
) -> None:
    rules = RoutingRules(sticky="header:x-session-id")
    gateway = await gateway_of(make_gateway, pair, rules)
    client = await connect(gateway)
    home = await answered_by(client, gateway, x_session_id="ann")
    (upstream,) = (u for u in gateway.state.table.upstreams() if u.replica == home)
    upstream.ready = False
    assert await answered_by(client, gateway, x_session_id="ann") != home
    upstream.ready = True
    assert await answered_by(client, gateway, x_session_id="ann") == home


@pytest.mark.parametrize("name", ["usage", "several"])
async def test_accounts_of_routing_end_with_their_requests(name: str, pair: list[Engine], make_gateway: Any) -> None:
    gateway = await gateway_of(make_gateway, pair, RoutingRules())
    path, document = REQUESTS[name]
    await pair[0].fault("break", after_tokens=2)
    for _ in range(4):
        assert (await streamed(gateway, path, {**document, "model": "tiny"})).done
    await pair[0].fault("none")
    router = gateway.state.table.pools()[0].router
    for upstream in gateway.state.table.upstreams():
        load = router.load_of(upstream.key)
        assert (load.requests, load.prefills, load.prefill_tokens, load.decode_tokens) == (0, 0, 0, 0)


async def test_a_timeline_explains_the_choice(pair: list[Engine], make_gateway: Any, connect: Any) -> None:
    gateway = await gateway_of(make_gateway, pair, RoutingRules(policy="least_requests"))
    client = await connect(gateway)
    response = await client.post(CHAT)
    request_id = response.headers["x-request-id"]
    found = (await client.get(f"/admin/v1/requests/{request_id}")).json()
    choice = found["routing"]["choice"]
    assert choice["policy"] == "least_requests"
    assert choice["replica"] == response.headers["x-longboat-replica"]
    assert {row["replica"] for row in choice["candidates"]} == {"r0", "r1"}
    assert [row["chosen"] for row in choice["candidates"]] == [True, False]
    assert choice["happened"]["ttft_ms"] > 0
    assert choice["happened"]["prompt_tokens"] == found["prompt_tokens"]


def test_of_many_candidates_those_that_cost_least_are_shown() -> None:
    router = Router(Cost(), DictIndex())
    prompt = Prompt("r", 100)
    waits = random.Random(1).sample(range(40), 40)
    choice = Choice(waits.index(0), "", terms=[(float(wait), 1.0, 2.0, 0.0) for wait in waits])
    rows = explained(
        Routed(choice, [f"r{at}" for at in range(40)], router, prompt), waited_s=None, prompt_tokens=1, cached_tokens=0
    )["candidates"]
    assert [row["wait_s"] for row in rows] == list(range(16))


async def test_routes_show_each_replica(pair: list[Engine], make_gateway: Any, connect: Any) -> None:
    gateway = await gateway_of(make_gateway, pair, RoutingRules(policy="round_robin"))
    client = await connect(gateway)
    for _ in range(4):
        await answered_by(client, gateway)
    found = (await client.get("/admin/v1/routes?model=tiny")).json()
    assert found["policy"] == "round_robin"
    assert {row["replica"]: (row["in_flight"], row["sent"]) for row in found["routes"]} == {"r0": (0, 2), "r1": (0, 2)}
    missing = await client.get("/admin/v1/routes?model=nosuch")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_streams_that_run_are_counted_by_replica_and_tenant(
    pair: list[Engine], make_gateway: Any, connect: Any
) -> None:
    gateway = await gateway_of(make_gateway, pair, RoutingRules(policy="round_robin"))
    client = await connect(gateway)
    readers = [Reader(gateway) for _ in range(3)]
    for reader in readers:
        await reader.ask("/v1/chat/completions", {**CHAT, "max_tokens": 2000, "stream": True})
    found = (await client.get("/admin/v1/requests")).json()
    assert found["requests"] == []
    assert sorted(row["requests"] for row in found["running"]) == [1, 2]
    assert {(row["model"], row["tenant"]) for row in found["running"]} == {("tiny", ANONYMOUS)}
    assert (await client.get("/admin/v1/requests?tenant=nosuch")).json()["running"] == []
    for reader in readers:
        reader.close()


async def test_a_trace_has_sizes_and_hashes_and_not_a_word(pair: list[Engine], make_gateway: Any, connect: Any) -> None:
    gateway = await gateway_of(make_gateway, pair, RoutingRules())
    client = await connect(gateway)
    await answered_by(client, gateway)
    first = (await client.get("/admin/v1/trace?reader=me")).json()
    assert first["rows"] == []  # what was before the first look is not recorded
    await answered_by(client, gateway)
    trace = await client.get("/admin/v1/trace?reader=me")
    (row,) = trace.json()["rows"]
    assert row["prompt_tokens"] > 0 and row["output_tokens"] > 0
    assert b"word" not in trace.body
    assert (await client.get("/admin/v1/trace?reader=me")).json()["rows"] == []


async def test_another_policy_takes_over_without_a_restart(pair: list[Engine], make_gateway: Any, connect: Any) -> None:
    gateway = await gateway_of(make_gateway, pair, RoutingRules(policy="least_requests"))
    push_policy(gateway, Policy(routing=RoutingRules(policy="round_robin")))
    client = await connect(gateway)
    assert [await answered_by(client, gateway) for _ in range(4)] in (["r0", "r1"] * 2, ["r1", "r0"] * 2)
