"""What gateways make of what engines tell, and of those that tell nothing."""

from __future__ import annotations

import sys
from typing import Any

from engine_lab import Engine
from fake_upstream import Seen
from gateway_lab import eventually, keyed, settled, table

from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.api.apis import APIS
from longboat.gateway.api.body import BodyKind, read_facts
from longboat.gateway.calls.model_request import Call
from longboat.gateway.exchange.selection import Selection
from longboat.gateway.http.request import Request
from longboat.gateway.prefixes.feed import FeedState
from longboat.gateway.process.server import Gateway

BODY = b'{"model":"tiny","messages":[{"role":"user","content":"hello"}]}'


def turn(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0}


async def gateway_of(make_gateway: Any, pair: list[Engine]) -> Gateway:
    gateway: Gateway = await make_gateway(policy=Policy())
    gateway.state.offer_table("f", table(*(engine.endpoint(f"r{n}") for n, engine in enumerate(pair))))
    return gateway


async def heard(gateway: Gateway) -> dict[str, FeedState]:
    """The feeds of both engines, once the gateway hears them."""
    feeds = gateway.state.feeds
    await eventually(lambda: len(feeds) == 2 and all(feed.is_live for feed in feeds.values()), "feeds are heard")
    return feeds


async def test_conversations_go_back_to_the_replica_that_holds_them(
    pair: list[Engine], make_gateway: Any, connect: Any
) -> None:
    gateway = await gateway_of(make_gateway, pair)
    client = await connect(gateway)
    feeds = await heard(gateway)
    homes = {}
    for name in ("ann", "bob", "cid", "dan"):
        texts = [f"{name} says " + "word " * 800]
        for _ in range(3):
            response = await client.post(turn(*texts))
            homes.setdefault(name, []).append(response.headers["x-longboat-replica"])
            texts += ["answer", "and then " + "more " * 50]
    # A busy replica may lose one: waiting there then costs more than computing the prompt again.
    assert sum(len(set(found)) - 1 for found in homes.values()) <= 2, homes
    await eventually(lambda: sum(feed.accuracy.snapshot().requests for feed in feeds.values()) == 12, "all is told")
    figures = [feed.accuracy.snapshot() for feed in feeds.values()]
    expected = sum(figure.expected_tokens for figure in figures)
    right = sum(figure.right_tokens for figure in figures)
    assert expected > 0 and right >= 0.95 * expected


async def test_what_a_new_gateway_is_told_is_what_engines_hold(
    pair: list[Engine], make_gateway: Any, connect: Any
) -> None:
    first = await gateway_of(make_gateway, pair)
    client = await connect(first)
    await heard(first)
    document = turn("a prompt that " + "repeats " * 600)
    home = (await client.post(document)).headers["x-longboat-replica"]
    second = await gateway_of(make_gateway, pair)
    await eventually(lambda: len(second.state.feeds) == 2, "feeds are heard")
    index: Any = second.state.table.pools()[0].router.index
    await eventually(lambda: len(index) > 0, "names came")
    other = await connect(second)
    assert {(await other.post(document)).headers["x-longboat-replica"] for _ in range(4)} == {home}


async def test_what_engines_tell_is_in_the_account_of_the_request(
    pair: list[Engine], make_gateway: Any, connect: Any
) -> None:
    gateway = await gateway_of(make_gateway, pair)
    client = await connect(gateway)
    await heard(gateway)
    document = turn("a long story " + "told again " * 400)
    await client.post(document)
    request_id = (await client.post(document)).headers["x-request-id"]
    choice = (await client.get(f"/admin/v1/requests/{request_id}")).json()["routing"]["choice"]
    assert choice["expected"]["cached_tokens"] > 0
    (row,) = [row for row in choice["candidates"] if row["chosen"]]
    assert "prefill_s" in row
    routes = (await client.get("/admin/v1/routes")).json()["routes"]
    assert all(row["tells"] for row in routes)
    assert sum(row["hits"]["requests"] for row in routes) >= 2


async def test_replicas_that_leave_give_their_slots_back(pair: list[Engine], make_gateway: Any) -> None:
    gateway = await gateway_of(make_gateway, pair)
    for generation in range(2, 400):  # more than the index has slots
        ends = [engine.endpoint(f"r{n}", generation=generation) for n, engine in enumerate(pair)]
        gateway.state.offer_table("f", table(*ends, version=2 * generation))
        for pool in gateway.state.table.pools():
            assert len({pool.router.load_of(upstream.key).slot for upstream in pool.upstreams}) == 2
        gateway.state.offer_table("f", table(version=2 * generation + 1, models=()))


async def test_request_that_is_sent_elsewhere_counts_at_no_replica(pair: list[Engine], make_gateway: Any) -> None:
    """A paused stream ends at the last replica of its revision, which leaves, whatever the router chose before."""
    state = (await gateway_of(make_gateway, pair)).state
    (pool,) = state.table.pools()
    call = Call(
        Request(b"/v1/chat/completions", "POST", "req"), APIS[b"/v1/chat/completions"], path=b"/v1/chat/completions",
        tenant=TenantPolicy(name="a"), pools=("tiny",), requested="tiny", body=BODY,
        facts=read_facts(BODY, BodyKind.CHAT, refuse_fleet_fields=True),
    )  # fmt: skip
    selection = Selection(state, call)
    found = selection.choose("tiny", pool.upstreams, frozenset(), adapter="", overfull=False)
    assert found is not None
    (other,) = [upstream for upstream in pool.upstreams if upstream is not found[0]]
    assert selection.begin_trip(other, 0.0) is None
    assert [pool.router.load_of(upstream.key).requests for upstream in pool.upstreams] == [0, 0]


async def test_an_error_teaches_nothing_about_prefills(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def refuse(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}")

    gateway = await make_gateway(await make_upstream(refuse), await make_upstream(refuse))
    client = await connect(gateway)
    policy: Any = gateway.state.table.pools()[0].router.policy
    before = policy.prefill_time.token_s
    for _ in range(8):
        assert (await client.post(turn("long " * 6000))).status == 400
    assert policy.prefill_time.token_s == before


async def test_a_long_prompt_takes_no_more_room_among_recent_requests(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream(), await make_upstream())
    client = await connect(gateway)
    for num_words in (1, 20_000):
        assert (await client.post(turn("word " * num_words))).status == 200
    long, short = [record.routed.prompt for record in settled(gateway).recent.newest()]
    assert long.num_tokens > 20_000 > short.num_tokens
    assert sys.getsizeof(long.blocks) == sys.getsizeof(short.blocks)
    assert sys.getsizeof(long.ends) == sys.getsizeof(short.ends)


async def test_a_tenant_does_not_see_the_load_of_replicas(pair: list[Engine], make_gateway: Any, connect: Any) -> None:
    policy, (key,) = keyed(TenantPolicy(name="a"))
    gateway: Gateway = await make_gateway(policy=policy)
    gateway.state.offer_table("f", table(*(engine.endpoint(f"r{n}") for n, engine in enumerate(pair))))
    client = await connect(gateway)
    request_id = (await client.post(turn("hello"), headers=key)).headers["x-request-id"]
    choice = (await client.get(f"/admin/v1/requests/{request_id}", key)).json()["routing"]["choice"]
    assert choice["candidates"] == [] and choice["replica"] in ("r0", "r1")
