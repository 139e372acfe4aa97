"""Tokens of real answers: asked for of the engine, hidden where nobody asked, and written down in every book."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import DEADLINE_S, STREAM_HEAD, Seen, chunk, event, until_closed
from gateway_lab import endpoint, eventually, keyed, post_bytes, push_policy, settled

from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.process.server import Gateway

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
ASK_STREAM = {**ASK, "stream": True}
COUNTS = {"prompt_tokens": 90, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
USAGE_EVENT = b'data: {"choices":[],"usage":%b}\n\n' % json.dumps(COUNTS).encode()
DONE = b"data: [DONE]\n\n"


async def counted_stream(seen: Seen) -> None:
    """Like an engine: usage comes where it is asked for."""
    wanted = json.loads(seen.body).get("stream_options", {}).get("include_usage")
    blocks = [event("a"), event("b"), *([USAGE_EVENT] if wanted else []), DONE]
    await seen.send(STREAM_HEAD + b"".join(map(chunk, blocks)) + b"0\r\n\r\n")


async def counted_json(seen: Seen) -> None:
    body = json.dumps({"choices": [], "usage": COUNTS}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    await seen.send(head % len(body) + body)


def record(gateway: Gateway) -> Any:
    return settled(gateway).recent.newest()[0]


async def test_usage_is_asked_for_and_taken_out_again(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream(counted_stream)
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    for _ in range(2):
        response = await client.post(ASK_STREAM)
        assert (response.body, response.complete) == (event("a") + event("b") + DONE, True)
    assert json.loads(upstream.seen[0].body)["stream_options"] == {"include_usage": True}
    assert record(gateway).prompt_tokens == 90


async def test_usage_that_comes_in_pieces_is_taken_out(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    wire = b"".join(map(chunk, (event("a"), USAGE_EVENT, DONE))) + b"0\r\n\r\n"

    async def dribble(seen: Seen) -> None:
        await seen.send(STREAM_HEAD)
        for at in range(0, len(wire), 11):
            await seen.send(wire[at : at + 11])
            await asyncio.sleep(0)

    gateway = await make_gateway(await make_upstream(dribble))
    response = await (await connect(gateway)).post(ASK_STREAM)
    assert (response.body, response.complete) == (event("a") + DONE, True)
    assert record(gateway).completion_tokens == 7


async def test_clients_own_wish_for_usage_is_kept(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream(counted_stream)
    gateway = await make_gateway(upstream)
    body = json.dumps({**ASK_STREAM, "stream_options": {"include_usage": True}}).encode()
    response = await (await connect(gateway)).post(body)
    assert response.body == event("a") + event("b") + USAGE_EVENT + DONE
    assert upstream.seen[0].body == body
    assert record(gateway).cached_tokens == 64


async def test_stream_of_known_length_stays_well_framed(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    body = event("a") + USAGE_EVENT + DONE

    async def sized(seen: Seen) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        await seen.send(head % len(body) + body)

    gateway = await make_gateway(await make_upstream(sized))
    client = await connect(gateway)
    for _ in range(2):
        response = await client.post(ASK_STREAM)
        assert (response.body, response.complete) == (event("a") + DONE, True)
    old = await connect(gateway)
    old.send(post_bytes(ASK_STREAM).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    answer = await old.response()
    assert answer.body == event("a") + DONE
    assert not {"transfer-encoding", "content-length"} & answer.headers.keys()


async def test_whole_answer_is_written_down_in_every_book(
    make_upstream: Any, make_gateway: Any, connect: Any, tmp_path: Path
) -> None:
    policy, (key,) = keyed(TenantPolicy(name="acme"))
    log = tmp_path / "access.log"
    upstream = await make_upstream(counted_json)
    gateway = await make_gateway(upstream, policy=policy, settings={"access_log": str(log)})
    client = await connect(gateway)
    assert (await client.post(ASK, headers=key)).status == 200
    upstream.script = counted_stream
    assert (await client.post(ASK_STREAM, headers=key)).status == 200
    (row,) = settled(gateway).usage.report(1, time.time())
    assert (row.tenant, row.model, row.requests) == ("acme", "tiny", 2)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (180, 14, 128)
    metrics = (await client.get("/metrics")).body.decode()
    for name, count in (("prompt_tokens", 180), ("generation_tokens", 14), ("prompt_tokens_cached", 128)):
        assert f'longboat_gateway_{name}_total{{model="tiny",tenant="acme"}} {count}\n' in metrics
    await eventually(lambda: log.read_text().count("\n") == 2, "two lines are written")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["tenant"], line["prompt_tokens"], line["completion_tokens"]) for line in lines] == [
        ("acme", 90, 7)
    ] * 2
    shown = (await client.get("/admin/v1/usage", key)).json()["days"]
    assert [(day["tenant"], day["prompt_tokens"]) for day in shown] == [("acme", 180)]


async def test_each_tenant_has_a_cache_salt_of_its_own(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    tenants = [TenantPolicy(name=name, cache_group="club" if name in "cd" else "") for name in "abcd"]
    policy, keys = keyed(*tenants, salt="pepper")
    upstream = await make_upstream(counted_json)
    client = await connect(await make_gateway(upstream, policy=policy))
    for key in (*keys, keys[0]):
        assert (await client.post(ASK, headers=key)).status == 200
    a, b, c, d, again = [json.loads(seen.body)["cache_salt"] for seen in upstream.seen]
    assert a == again and c == d
    assert len({a, b, c}) == 3
    assert not any(name in a for name in ("pepper", "tenant"))
    refused = await client.post({**ASK, "cache_salt": a}, headers=keys[1])
    assert (refused.status, refused.json()["error"]["param"]) == (400, "cache_salt")


async def test_without_keys_nothing_is_salted(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream(counted_json)
    client = await connect(await make_gateway(upstream, policy=Policy(salt="pepper")))
    body = json.dumps(ASK).encode()
    await client.post(body)
    assert upstream.seen[0].body == body
    await client.post({**ASK, "cache_salt": "mine"})
    assert json.loads(upstream.seen[1].body)["cache_salt"] == "mine"


async def test_client_that_leaves_before_the_usage_is_counted_once(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def all_but_the_end(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(event("a")) + chunk(event("b")))
        await until_closed(seen)

    upstream = await make_upstream(all_but_the_end)
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    client.send(post_bytes(ASK_STREAM))
    await client.head()
    while event("b") not in await client.read_some():
        pass
    client.abort()
    await asyncio.wait_for(upstream.ended.wait(), DEADLINE_S)
    await eventually(lambda: gateway.state.in_flight == 0, "its account is closed")
    assert [r.outcome for r in settled(gateway).recent.newest()] == ["client_left"]
    (row,) = gateway.state.usage.report(1, time.time())
    assert (row.requests, row.completion_tokens) == (1, 2)  # it has two events
    assert row.prompt_tokens > 0
    counts = gateway.state.accounting.counters.counts_of("anonymous", time.time())
    assert (counts.running, counts.requests) == (0, 1)
    assert 2 <= counts.tokens < 256


@pytest.mark.parametrize(
    "usage",
    [
        b'{"type":"\xff\xfe","usage":{"prompt_tokens":1}}',
        b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b',"usage":{"prompt_tokens":1}}',
        b'{"usage":{"prompt_tokens":-5,"completion_tokens":99999999999999999999999999}}',
        b'{"usage":{"prompt_tokens":"many"}}',
    ],
)
async def test_nonsense_of_an_engine_reaches_the_client_and_harms_no_book(
    usage: bytes, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def nonsense(seen: Seen) -> None:
        if b'"stream": true' in seen.body:
            await seen.send(STREAM_HEAD + chunk(event("a")) + chunk(b"data: %b\n\n" % usage) + b"0\r\n\r\n")
        else:
            await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(usage), usage))

    gateway = await make_gateway(await make_upstream(nonsense))
    client = await connect(gateway)
    assert (await client.post(ASK)).body == usage
    assert usage in (await client.post(ASK_STREAM)).body
    assert gateway.state.in_flight == 0
    counts = settled(gateway).accounting.counters.counts_of("anonymous", time.time())
    assert 0 <= counts.tokens < 10_000


async def test_broken_stream_of_messages_ends_with_anthropics_event(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5}}}\n\n'

    async def start_only(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(start))
        seen.writer.transport.abort()

    gateway = await make_gateway(await make_upstream(start_only))
    response = await (await connect(gateway)).post(
        {**ASK_STREAM, "max_tokens": 9}, "/v1/messages", "x-request-id: mine\r\n"
    )
    assert response.complete and response.body.startswith(start)
    name, _, data = response.body.removeprefix(start).partition(b"\ndata: ")
    document = json.loads(data)
    assert (name, document["type"], document["request_id"]) == (b"event: error", "error", "mine")
    assert document["error"]["type"] == "api_error"


async def test_answers_of_an_old_client_are_counted(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway(await make_upstream(counted_stream))
    client = await connect(gateway)
    client.send(post_bytes(ASK_STREAM).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    response = await client.response()
    assert response.body == event("a") + event("b") + DONE
    assert "transfer-encoding" not in response.headers
    assert record(gateway).completion_tokens == 7


async def test_policy_may_change_while_a_stream_runs(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    go_on = asyncio.Event()

    async def slow(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(event("a")))
        await go_on.wait()
        await seen.send(b"".join(map(chunk, (event("b"), USAGE_EVENT, DONE))) + b"0\r\n\r\n")

    gateway = await make_gateway(endpoints=[endpoint(await make_upstream(slow), capacity=1)])
    client = await connect(gateway)
    client.send(post_bytes(ASK_STREAM))
    await client.head()
    policy, (key,) = keyed(TenantPolicy(name="a", concurrent_requests=1))
    push_policy(gateway, policy)
    go_on.set()
    body, complete = await client.chunked_body()
    assert (body, complete) == (event("a") + event("b") + DONE, True)
    assert (await client.post(ASK)).status == 401
    assert (await client.post(ASK_STREAM, headers=key)).status == 200
    assert gateway.state.accounting.counters.counts_of("anonymous", time.time()).running == 0


async def test_a_count_of_tokens_has_no_time_to_a_first_token(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream(counted_json))
    client = await connect(gateway)
    for path in ("/tokenize", "/v1/messages/count_tokens", "/v1/chat/completions"):
        assert (await client.post(ASK, path)).status == 200
    (series,) = settled(gateway).metrics.snapshot()["series"]
    assert (sum(series["e2e"][:-1]), sum(series["ttft"][:-1])) == (3, 1)


PART_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"c"}}],"usage":%b}\n\n' % json.dumps(COUNTS).encode()
MESSAGE_EVENT = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}\n\n'
MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
RESPONSE_EVENT = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"output_tokens":7}}}\n\n'
)
WANTS_USAGE = {**ASK_STREAM, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("path", "document", "blocks", "outcome"),
    [
        ("/v1/chat/completions", ASK_STREAM, (USAGE_EVENT, DONE), "ok"),
        ("/v1/chat/completions", WANTS_USAGE, (USAGE_EVENT, DONE), "ok"),
        ("/v1/chat/completions", WANTS_USAGE, (PART_EVENT,), "client_left"),
        ("/v1/messages", {**ASK_STREAM, "max_tokens": 9}, (MESSAGE_EVENT, MESSAGE_STOP), "ok"),
        ("/v1/responses", {"model": "tiny", "input": "hello", "stream": True}, (RESPONSE_EVENT,), "ok"),
    ],
)
async def test_client_that_closes_at_the_last_event_has_all_of_a_stream(
    path: str,
    document: dict[str, Any],
    blocks: tuple[bytes, ...],
    outcome: str,
    make_upstream: Any,
    make_gateway: Any,
    connect: Any,
) -> None:
    async def all_but_the_last_chunk(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + b"".join(map(chunk, (event("a"), *blocks))))
        await until_closed(seen)

    gateway = await make_gateway(await make_upstream(all_but_the_last_chunk))
    client = await connect(gateway)
    client.send(post_bytes(document, path))
    await client.head()
    got = b""
    while blocks[-1] not in got:
        got += await client.read_some()
    client.abort()
    await eventually(lambda: gateway.state.in_flight == 0, "its account is closed")
    left = record(gateway)
    assert (left.outcome, left.status) == (outcome, 200 if outcome == "ok" else 499)
    assert left.completion_tokens == 7
