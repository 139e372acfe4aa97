"""Responses that engines keep: only the replica that made one is asked for it, and only by its tenant."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_upstream import STREAM_HEAD, FakeUpstream, Seen, chunk
from gateway_lab import EVEN, RawClient, Response, endpoint, keyed, table

from longboat.core.policy import Alias, Policy, TenantPolicy, WeightedPool
from longboat.gateway.upstreams.response_affinity import ResponseAffinity

ASK = {"model": "tiny", "input": "hello"}
PATH = "/v1/responses"


class Keeper:
    """An engine that makes responses and says who it is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made = 0

    async def script(self, seen: Seen) -> None:
        self.made += 1
        document = {"id": f"resp_{self.name}_{self.made}", "object": "response", "by": self.name}
        if b'"stream": true' in seen.body:
            made = {"type": "response.created", "response": document}
            await seen.send(STREAM_HEAD + chunk(b"event: x\ndata: " + json.dumps(made).encode() + b"\n\n"))
            await seen.send(b"0\r\n\r\n")
            return
        body = json.dumps(document).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        await seen.send(head % len(body) + body)


async def sent(client: RawClient, method: str, path: str, headers: str = "") -> Response:
    client.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode())
    return await client.response()


@pytest.fixture
async def two_keepers(make_upstream: Any) -> list[FakeUpstream]:
    return [await make_upstream(Keeper(name).script) for name in ("r0", "r1")]


async def test_everything_about_a_response_goes_to_its_replica(
    two_keepers: Any, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway(*two_keepers, policy=Policy(routing=EVEN)))
    owners = set()
    for _ in range(4):
        made = await client.post(ASK, PATH)
        replica, name = made.headers["x-longboat-replica"], made.json()["id"]
        owners.add(replica)
        answers = [
            await client.post({**ASK, "previous_response_id": name}, PATH),
            await client.get(f"{PATH}/{name}?include=x"),
            await sent(client, "POST", f"{PATH}/{name}/cancel"),
            await client.get(f"{PATH}/{name}/input_items"),
            await sent(client, "DELETE", f"{PATH}/{name}"),
        ]
        assert [(a.status, a.headers["x-longboat-replica"]) for a in answers] == [(200, replica)] * 5
        await client.post(ASK, PATH)  # so that the next is another replica's turn
    assert owners == {"r0", "r1"}
    heads = [seen.head.split(b"\r\n")[0] for upstream in two_keepers for seen in upstream.seen]
    assert any(head.startswith(b"GET /v1/responses/resp_r0_1?include=x ") for head in heads)
    assert any(head.startswith(b"DELETE /v1/responses/resp_r1_") for head in heads)


async def test_response_of_a_stream_is_remembered(two_keepers: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(*two_keepers))
    for _ in range(2):
        made = await client.post({**ASK, "stream": True}, PATH)
        name = json.loads(made.body.partition(b"data: ")[2])["response"]["id"]
        got = await client.get(f"{PATH}/{name}")
        assert got.headers["x-longboat-replica"] == made.headers["x-longboat-replica"]


async def test_unknown_responses_and_other_tenants_get_the_same_404(
    two_keepers: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (mine, theirs) = keyed(TenantPolicy(name="a"), TenantPolicy(name="b"))
    client = await connect(await make_gateway(*two_keepers, policy=policy))
    name = (await client.post(ASK, PATH, mine)).json()["id"]
    num_seen = sum(len(u.seen) for u in two_keepers)
    for key, asked in ((theirs, name), (mine, "resp_unknown"), (mine, "..")):
        answers = [
            await client.get(f"{PATH}/{asked}", key),
            await sent(client, "DELETE", f"{PATH}/{asked}", key),
            await sent(client, "POST", f"{PATH}/{asked}/cancel", key),
            await client.post({**ASK, "previous_response_id": asked}, PATH, key),
        ]
        assert [(a.status, a.code) for a in answers] == [(404, "response_not_found")] * 4
    assert (await client.get(f"{PATH}/{name}")).status == 401
    assert sum(len(u.seen) for u in two_keepers) == num_seen
    assert (await client.get(f"{PATH}/{name}", mine)).status == 200


async def test_tenant_cannot_take_over_a_response_that_it_names(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    names = iter(("victim", "mine", "victim"))

    async def script(seen: Seen) -> None:
        document = {"data": [{"id": "resp_victim"}]} if b"input_items" in seen.head else {"id": f"resp_{next(names)}"}
        body = json.dumps(document).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        await seen.send(head % len(body) + body)

    policy, (a, b) = keyed(TenantPolicy(name="a"), TenantPolicy(name="b"))
    gateway = await make_gateway(await make_upstream(script), policy=policy)
    client = await connect(gateway)
    await client.post(ASK, PATH, a)
    await client.post(ASK, PATH, b)
    assert (await client.get(f"{PATH}/resp_mine/input_items", b)).status == 200
    assert gateway.state.owners.find("resp_victim").tenant == "a"
    await client.post(ASK, PATH, b)  # an engine gives it the same id
    assert gateway.state.owners.find("resp_victim").tenant == "a"


def test_response_of_another_tenant_stays_that_tenants() -> None:
    owners = ResponseAffinity()
    owners.learn(b'{"id":"resp_x"}', tenant="a", model="tiny", key="r0")
    owners.learn(b'{"id":"resp_x"}', tenant="b", model="tiny", key="r1")
    assert owners.of("resp_x", "b") is None
    owners.learn(b'{"id":"resp_x"}', tenant="a", model="tiny", key="r2")
    assert owners.of("resp_x", "a").key == "r2"  # type: ignore[union-attr]


async def test_list_of_input_items_teaches_nothing(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def script(seen: Seen) -> None:
        name = "other" if b"input_items" in seen.head else "mine"
        body = b'{"id": "resp_%b"}' % name.encode()
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    gateway = await make_gateway(await make_upstream(script))
    client = await connect(gateway)
    await client.post(ASK, PATH)
    assert (await client.get(f"{PATH}/resp_mine/input_items")).status == 200
    assert gateway.state.owners.find("resp_other") is None


@pytest.mark.parametrize(
    ("method", "suffix", "status"),
    [("PUT", "", 405), ("HEAD", "", 405), ("GET", "/cancel", 405), ("POST", "/input_items", 405), ("GET", "/x", 404)],
)
async def test_what_the_api_does_not_have_reaches_no_engine(
    method: str, suffix: str, status: int, two_keepers: Any, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway(*two_keepers))
    name = (await client.post(ASK, PATH)).json()["id"]
    client.send(f"{method} {PATH}/{name}{suffix} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert (await client.head())[0] == status
    assert sum(len(u.seen) for u in two_keepers) == 1


async def test_response_whose_replica_is_gone_is_a_404(two_keepers: Any, make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway(two_keepers[0])
    client = await connect(gateway)
    name = (await client.post(ASK, PATH)).json()["id"]
    again = endpoint(two_keepers[0], "r0", generation=2)  # started anew: its memory is gone
    gateway.state.offer_table("e", table(again, endpoint(two_keepers[1], "r1"), version=2))
    answers = [
        await client.get(f"{PATH}/{name}"),
        await client.post({**ASK, "previous_response_id": name}, PATH),
    ]
    assert [(a.status, a.code) for a in answers] == [(404, "response_not_found")] * 2
    assert gateway.state.in_flight == 0


async def test_response_of_an_alias_goes_to_the_model_that_made_it(
    two_keepers: Any, make_gateway: Any, connect: Any
) -> None:
    pools = (WeightedPool(model="tiny"), WeightedPool(model="big"))
    policy = Policy(aliases=(Alias(name="split", pools=pools, sticky="request"),))
    gateway = await make_gateway(two_keepers[0], policy=policy, endpoints=[endpoint(two_keepers[1], "b0", "big")])
    client = await connect(gateway)
    for _ in range(40):
        made = await client.post({**ASK, "model": "split"}, PATH)
        following = {**ASK, "model": "split", "previous_response_id": made.json()["id"]}
        answer = await client.post(following, PATH)
        assert answer.headers["x-longboat-model"] == made.headers["x-longboat-model"]
    assert all(upstream.seen for upstream in two_keepers)
