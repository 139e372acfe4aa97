"""One request through an engine: bytes, headers, retries, ends."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from fake_upstream import DEADLINE_S, STREAM_HEAD, Seen, chunk, event, until_closed
from gateway_lab import API_KEY, endpoint, eventually, post_bytes, table

from longboat.core.policy import Policy, ResumePolicy

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hé"}]}
ASK_STREAM = {**ASK, "stream": True}


def refusing_url() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


async def test_body_reaches_the_engine_as_the_same_bytes(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    body = b'{ "model":"ti\\u006ey",\n "x": 1.0e2, "messages":[] }'
    response = await client.post(body)
    assert (response.status, response.body) == (200, b'{"answer": 4.2}')
    assert upstream.seen[0].body == body
    assert upstream.seen[0].head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


async def test_engine_gets_its_own_key_and_no_secret_of_the_client(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    secrets = "authorization: Bearer client-secret\r\nx-api-key: client-secret\r\ncookie: a=client-secret\r\n"
    await client.post(
        ASK, headers=secrets + "connection: x-drop\r\nx-drop: 1\r\nx-longboat-tenant: me\r\nx-keep: 2\r\n"
    )
    seen = upstream.seen[0]
    assert b"client-secret" not in seen.head
    assert seen.header("authorization") == f"Bearer {API_KEY}"
    assert seen.header("host") == f"127.0.0.1:{upstream.port}"
    assert (seen.header("x-drop"), seen.header("x-longboat-tenant"), seen.header("x-keep")) == (None, None, "2")


async def test_headers_by_which_clients_would_steer_engines_are_taken_off(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    await client.post(ASK, headers="X-Conversation-Id: c1\r\nX-data-parallel-rank: 1\r\nx-keep: 2\r\n")
    assert b"conversation" not in upstream.seen[0].head.lower()
    assert upstream.seen[0].header("x-data-parallel-rank") is None
    assert upstream.seen[0].header("x-keep") == "2"


async def test_request_id_is_made_or_passed_on(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    given = await client.post(ASK, headers="x-request-id: my-1\r\n")
    made = await client.post(ASK, headers="x-request-id: {bad}\r\n")
    assert given.headers["x-request-id"] == upstream.seen[0].header("x-request-id") == "my-1"
    assert made.headers["x-request-id"] == upstream.seen[1].header("x-request-id") != "{bad}"


async def test_stream_is_relayed_byte_for_byte(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    events = [event(f"wort{i}é🚣") for i in range(50)] + [b": comment\n\n", b"data: [DONE]\n\n"]
    wire = STREAM_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n"

    async def in_odd_pieces(seen: Seen) -> None:
        for at in range(0, len(wire), 37):
            await seen.send(wire[at : at + 37])
            await asyncio.sleep(0)

    client = await connect(await make_gateway(await make_upstream(in_odd_pieces)))
    for _ in range(2):
        response = await client.post(ASK_STREAM)
        assert response.body == b"".join(events)
        assert response.complete
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_each_event_is_passed_on_before_the_next_exists(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    go_on = asyncio.Event()

    async def one_then_wait(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(event("a")))
        await go_on.wait()
        await seen.send(chunk(event("b")) + b"0\r\n\r\n")

    client = await connect(await make_gateway(await make_upstream(one_then_wait)))
    client.send(post_bytes(ASK_STREAM))
    await client.head()
    assert event("a") in await client.read_some()
    go_on.set()
    assert event("b") in await client.read_some()


async def test_engine_connection_is_used_again(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream()
    gateway = await make_gateway(upstream)
    for _ in range(3):
        assert (await (await connect(gateway)).post(ASK)).status == 200
    assert upstream.connections == 1


async def test_pooled_connection_that_went_stale_is_replaced(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    await client.post(ASK)

    async def drop_first(seen: Seen) -> None:
        if len(upstream.seen) == 2:
            seen.writer.transport.abort()
        else:
            await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    upstream.script = drop_first
    assert (await client.post(ASK)).body == b"ok"
    assert upstream.connections == 2


async def test_refused_connection_is_tried_elsewhere(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(refusing_url(), upstream))
    for _ in range(4):
        assert (await client.post(ASK)).headers["x-longboat-replica"] == "r1"


async def test_engine_that_hangs_up_at_once_is_replaced(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{rude.sockets[0].getsockname()[1]}"
    client = await connect(await make_gateway(url, "http://no..such..name:1", await make_upstream()))
    for _ in range(6):
        assert (await client.post(ASK)).headers["x-longboat-replica"] == "r2"
    rude.close()


async def test_engine_that_dies_before_its_first_word_is_replaced(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def head_then_die(seen: Seen) -> None:
        await seen.send(STREAM_HEAD)
        seen.writer.close()

    dying, healthy = await make_upstream(head_then_die), await make_upstream()
    gateway = await make_gateway(dying, healthy)
    for _ in range(4):
        response = await (await connect(gateway)).post(ASK_STREAM)
        assert response.headers["x-longboat-replica"] == "r1"
    assert dying.seen


async def test_every_endpoint_is_tried_once_then_the_answer_is_502_or_503(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def die(seen: Seen) -> None:
        seen.writer.transport.abort()

    dying = [await make_upstream(die) for _ in range(3)]
    lost = await (await connect(await make_gateway(*dying))).post(ASK)
    assert (lost.status, lost.code) == (502, "engine_lost")
    assert [len(u.seen) for u in dying] == [1, 1, 1]
    unreachable = await (await connect(await make_gateway(refusing_url()))).post(ASK)
    assert (unreachable.status, unreachable.code) == (503, "engine_unreachable")
    assert "retry-after" in unreachable.headers


async def test_nothing_is_retried_after_the_first_event(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def one_event_then_die(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(event("a")) + chunk(b'data: {"torn'))
        await asyncio.sleep(0.05)
        seen.writer.transport.abort()

    dying, other = await make_upstream(one_event_then_die), await make_upstream(one_event_then_die)
    client = await connect(await make_gateway(dying, other))
    response = await client.post(ASK_STREAM)
    assert len(dying.seen) + len(other.seen) == 1
    assert response.body.startswith(event("a") + b'data: {"error":')
    assert b"torn" not in response.body
    assert response.complete
    assert await client.at_end()


async def test_broken_answer_that_is_no_stream_ends_short(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def half(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 50)
        await asyncio.sleep(0.05)
        seen.writer.close()

    policy = Policy(resume=ResumePolicy(enabled=False))
    client = await connect(await make_gateway(await make_upstream(half), policy=policy))
    client.send(post_bytes(ASK))
    await client.head()
    async with asyncio.timeout(DEADLINE_S):
        assert await client.reader.read() == b"x" * 50


async def test_client_that_leaves_ends_the_engines_work(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def endless(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(event("a")))
        await until_closed(seen)

    upstream = await make_upstream(endless)
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    client.send(post_bytes(ASK_STREAM))
    await client.head()
    client.abort()
    await asyncio.wait_for(upstream.ended.wait(), DEADLINE_S)
    await eventually(lambda: gateway.state.in_flight == 0, "nothing in flight")


async def test_client_that_leaves_before_the_first_word_ends_the_engines_work(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream(until_closed)
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    client.send(post_bytes(ASK))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    client.writer.close()
    await asyncio.wait_for(upstream.ended.wait(), DEADLINE_S)
    await eventually(lambda: gateway.state.held_bytes == 0, "the body is let go")
    assert all(u.outstanding == 0 for u in gateway.state.table.upstreams())


async def test_slow_client_stops_the_reading_of_its_engine(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    sent = 0
    block = chunk(b"data: " + b"x" * 65536 + b"\n\n")

    async def flood(seen: Seen) -> None:
        nonlocal sent
        await seen.send(STREAM_HEAD)
        for _ in range(1000):  # 62 MiB
            await seen.send(block)
            sent += len(block)
        await seen.send(b"0\r\n\r\n")

    client = await connect(await make_gateway(await make_upstream(flood)))
    client.send(post_bytes(ASK_STREAM))
    await client.head()  # the client's own buffers fill, then it reads nothing
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.5)
    assert sent < 30 * 1024 * 1024
    body, complete = await client.chunked_body()
    assert complete and len(body) == 1000 * (65536 + 8)


async def test_answer_of_unknown_length_is_chunked_for_1_1_and_closed_for_1_0(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def until_eof(seen: Seen) -> None:
        await seen.send(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nhello ")
        await seen.send(b"world")
        seen.writer.close()

    gateway = await make_gateway(await make_upstream(until_eof))
    modern = await (await connect(gateway)).post(ASK)
    assert (modern.body, modern.complete) == (b"hello world", True)
    old = await connect(gateway)
    old.send(post_bytes(ASK).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    response = await old.response()
    assert response.body == b"hello world"
    assert "transfer-encoding" not in response.headers


async def test_interim_answers_of_the_engine_are_not_passed_on(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def early_hints(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    client = await connect(await make_gateway(await make_upstream(early_hints)))
    for _ in range(2):
        response = await client.post(ASK)
        assert (response.status, response.body) == (200, b"ok")


async def test_engine_that_speaks_no_http_is_a_502(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def nonsense(seen: Seen) -> None:
        await seen.send(b"SSH-2.0-OpenSSH_9.6\r\n")

    response = await (await connect(await make_gateway(await make_upstream(nonsense)))).post(ASK)
    assert (response.status, response.code) == (502, "engine_lost")


async def test_engines_own_error_is_passed_on_as_it_is(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def complain(seen: Seen) -> None:
        await seen.send(b'HTTP/1.1 400 Bad Request\r\ncontent-length: 12\r\nx-own: 7\r\n\r\n{"error": 1}')

    response = await (await connect(await make_gateway(await make_upstream(complain)))).post(ASK)
    assert (response.status, response.body, response.headers["x-own"]) == (400, b'{"error": 1}', "7")


async def test_silent_engine_is_given_up(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream(until_closed)
    response = await (await connect(await make_gateway(upstream, engine_silence_s=0.5))).post(ASK)
    assert (response.status, response.code) == (504, "engine_silent")
    await asyncio.wait_for(upstream.ended.wait(), DEADLINE_S)


async def test_streams_of_an_endpoint_that_left_the_table_go_on(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    go_on = asyncio.Event()

    async def two_events(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(event("a")))
        await go_on.wait()
        await seen.send(chunk(event("b")) + b"0\r\n\r\n")

    leaving, staying = await make_upstream(two_events), await make_upstream()
    gateway = await make_gateway(leaving)
    client = await connect(gateway)
    client.send(post_bytes(ASK_STREAM))
    await client.head()
    gateway.state.table.offer("e", table(endpoint(staying, "r9"), version=2))
    other = await (await connect(gateway)).post(ASK)
    assert other.headers["x-longboat-replica"] == "r9"
    go_on.set()
    body, complete = await client.chunked_body()
    assert (body, complete) == (event("a") + event("b"), True)
    await asyncio.wait_for(leaving.ended.wait(), DEADLINE_S)  # and its connection is not pooled


async def test_no_replica_is_far_busier_than_another(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstreams = [await make_upstream(until_closed) for _ in range(2)]
    gateway = await make_gateway(*upstreams)
    for _ in range(6):
        (await connect(gateway)).send(post_bytes(ASK))
    await eventually(lambda: sum(len(u.seen) for u in upstreams) == 6, "all requests arrived")
    assert min(len(u.seen) for u in upstreams) >= 2


async def test_request_waits_while_replicas_are_full(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream(until_closed)
    gateway = await make_gateway(upstream, max_outstanding=1)
    first = await connect(gateway)
    first.send(post_bytes(ASK))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    second = await connect(gateway)
    second.send(post_bytes(ASK))
    await eventually(lambda: gateway.state.table.pools()[0].num_waiting == 1, "the second waits")
    assert len(upstream.seen) == 1
    first.abort()
    await eventually(lambda: len(upstream.seen) == 2, "the second is sent")
