"""A client's connection: order, keep-alive, limits, bad input."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import Any

import pytest
from fake_upstream import DEADLINE_S, STREAM_HEAD, Script, Seen, chunk, event, until_closed
from gateway_lab import config, eventually, post_bytes

from longboat.gateway.calls.state import GatewayState
from longboat.gateway.config import GatewayLimits
from longboat.gateway.requests.client_link import ClientLink
from longboat.gateway.requests.connection import ClientConnection
from longboat.gateway.requests.request_reader import RequestReader

ASK = {"model": "tiny", "messages": []}


async def echo_number(seen: Seen) -> None:
    body = seen.body
    await asyncio.sleep(0.05 if b'"n": 0' in body else 0.0)
    await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


def echo_after(go_on: asyncio.Event) -> Script:
    """Echo once the event is set."""

    async def wait(seen: Seen) -> None:
        await go_on.wait()
        await echo_number(seen)

    return wait


async def test_pipelined_requests_are_answered_in_order(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream(echo_number)))
    asks = [{"model": "tiny", "n": n} for n in range(5)]
    client.send(b"".join(map(post_bytes, asks)) + b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    assert [(await client.response()).json() for _ in asks] == asks
    assert (await client.response()).json() == {"alive": True}


async def test_pipelined_request_waits_for_the_first_answer(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    go_on = asyncio.Event()
    upstream = await make_upstream(echo_after(go_on))
    client = await connect(await make_gateway(upstream))
    client.send(post_bytes(ASK) + post_bytes(ASK))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    await asyncio.sleep(0.1)
    assert len(upstream.seen) == 1
    go_on.set()
    assert [(await client.response()).status for _ in range(2)] == [200, 200]


async def test_error_of_a_pipelined_request_comes_after_the_first_answer(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway(await make_upstream(echo_number)))
    client.send(post_bytes({"model": "tiny", "n": 0}) + b"NOT HTTP AT ALL\r\n\r\n")
    assert (await client.response()).status == 200
    last = await client.response()
    assert (last.status, last.code, last.headers["connection"]) == (400, "bad_http", "close")
    assert await client.at_end()


async def test_too_many_pipelined_requests_are_refused(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream(echo_number)))
    client.send(post_bytes({"model": "tiny", "n": 0}) * 200)
    answers = [await client.response() for _ in range(34)]
    assert [a.status for a in answers] == [200] * 33 + [400]
    assert await client.at_end()


async def test_chunked_request_body_is_gathered(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream(echo_number)
    client = await connect(await make_gateway(upstream))
    body = b'{"model": "tiny", "prompt": "' + b"p" * 5000 + b'"}'
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for at in range(0, len(body), 999):
        client.send(chunk(body[at : at + 999]))
        await asyncio.sleep(0)
    client.send(b"0\r\ntrailer: 1\r\n\r\n")
    assert (await client.response()).body == body
    assert upstream.seen[0].header("content-length") == str(len(body))
    assert upstream.seen[0].header("transfer-encoding") is None
    assert (await client.post(ASK)).status == 200


async def test_request_in_single_bytes_is_read(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream(echo_number)))
    wire = post_bytes(ASK)
    for at in range(len(wire)):
        client.send(wire[at : at + 1])
        await asyncio.sleep(0)
    assert (await client.response()).json() == ASK


async def test_connection_close_is_honoured(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream()))
    response = await client.post(ASK, headers="connection: close\r\n")
    assert response.headers["connection"] == "close"
    assert await client.at_end()


async def test_expect_continue_is_answered(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream(echo_number)))
    head, body = post_bytes(ASK, headers="expect: 100-continue\r\n").split(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    assert (await client.head())[0] == 100
    client.send(body)
    assert (await client.response()).json() == ASK


_OFFER = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [1, 7, 100000])
async def test_body_behind_an_offer_of_another_protocol_is_read_and_nothing_after_it(
    chunked: bool, size: int, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream(echo_number)
    client = await connect(await make_gateway(upstream))
    body = json.dumps(ASK).encode()
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%b%b\r\n\r\n" % (_OFFER, framing)
    framed = b"%x\r\n%b\r\n0\r\nx-trailer: y\r\n\r\n" % (len(body), body) if chunked else body
    sent = post_bytes({**ASK, "n": 0}) + head + framed + post_bytes(ASK)
    for start in range(0, len(sent), size):
        client.send(sent[start : start + size])
        await asyncio.sleep(0)
    assert (await client.response()).json() == {**ASK, "n": 0}
    response = await client.response()
    assert (response.json(), response.headers["connection"]) == (ASK, "close")
    assert await client.at_end()
    assert len(upstream.seen) == 2
    assert b"upgrade" not in upstream.seen[1].head.lower()
    assert b"http2-settings" not in upstream.seen[1].head.lower()


async def test_body_behind_an_offer_of_another_protocol_keeps_the_limits(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    gateway = await make_gateway(upstream, max_body_bytes=1000, body_timeout_s=0.3)
    start = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + _OFFER
    for rest, status in (
        (b"content-length: 1001\r\n\r\n", 413),
        (b"transfer-encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001, 413),
        (b"transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n", 400),
        (b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", 400),
        (b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: %b\r\n" % (b"y" * 900) * 80, 431),
        (b"content-length: 9\r\n\r\nabc", 408),
    ):
        client = await connect(gateway)
        client.send(start + rest)
        assert (await client.response()).status == status
        assert await client.at_end()
    assert not upstream.seen
    assert gateway.state.held_bytes == 0


async def test_expect_continue_behind_a_running_answer_is_answered_after_it(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    go_on = asyncio.Event()
    upstream = await make_upstream(echo_after(go_on))
    gateway = await make_gateway(upstream, body_timeout_s=0.3)
    client = await connect(gateway)
    head, body = post_bytes(ASK, headers="expect: 100-continue\r\n").split(b"\r\n\r\n")
    client.send(post_bytes(ASK) + head + b"\r\n\r\n")
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    await asyncio.sleep(0.8)  # longer than a body may take
    go_on.set()
    assert (await client.response()).json() == ASK
    assert (await client.head())[0] == 100
    client.send(body)
    assert (await client.response()).json() == ASK
    assert (await client.get("/livez")).status == 200


async def test_body_that_came_without_the_word_is_answered_once(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway(await make_upstream(echo_number)))
    client.send(post_bytes(ASK) + post_bytes(ASK, headers="expect: 100-continue\r\n"))
    assert [(await client.response()).status for _ in range(2)] == [200, 200]
    assert (await client.get("/livez")).status == 200


BAD = {
    "two lengths": (b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
    "length and chunked": (b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "odd coding": (b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "bad chunk size": (b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", 400),
    "negative length": (b"content-length: -5\r\n\r\n", 400),
    "space in name": (b"x y: 1\r\ncontent-length: 2\r\n\r\n{}", 400),
    "folded header": (b"x: 1\r\n 2\r\ncontent-length: 2\r\n\r\n{}", 400),
    "bare line feeds": (b"x: 1\nh: 2\r\ncontent-length: 2\r\n\r\n{}", 400),
    "null in value": (b"x: 1\x002\r\ncontent-length: 2\r\n\r\n{}", 400),
    "second host": (b"host: y\r\ncontent-length: 2\r\n\r\n{}", 400),
    "huge length": (b"content-length: 99999999999\r\n\r\n", 413),
    "endless length": (b"content-length: 99999999999999999999999999\r\n\r\n", 400),
    "no length": (b"\r\n", 411),
    "compressed": (b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}", 415),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_framing_gets_its_status_and_reaches_no_engine(
    case: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    rest, status = BAD[case]
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + rest)
    response = await client.response()
    assert response.status == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert not upstream.seen


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/2.0\r\nhost: x\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"BREW /pot HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    ],
)
async def test_what_is_not_http_1_is_refused(first: bytes, status: int, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway())
    client.send(first)
    response = await client.response()
    assert response.status == status
    assert await client.at_end()


@pytest.mark.parametrize("part", ["one header", "many headers", "url", "unfinished line", "trailers"])
async def test_endless_head_is_a_431(part: str, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(max_head_bytes=4096))
    start = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    client.send(
        {
            "one header": start + b"x: " + b"y" * 5000 + b"\r\n\r\n",
            "many headers": start + b"x: y\r\n" * 1000,
            "url": b"GET /" + b"a" * 5000,
            "unfinished line": start + b"x" * 5000,
            "trailers": start + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"t: u\r\n" * 1000,
        }[part]
    )
    assert (await client.response()).status == 431


async def test_body_beyond_the_limit_is_a_413(make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway(max_body_bytes=10_000)
    told = await connect(gateway)
    told.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10001\r\n\r\n")
    assert (await told.response()).status == 413
    untold = await connect(gateway)
    untold.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    untold.send(chunk(b"x" * 6000) * 2)
    assert (await untold.response()).status == 413
    assert gateway.state.held_bytes == 0


async def test_bodies_of_all_clients_share_one_budget(make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway(max_held_bytes=10_000)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n"
    first, second = await connect(gateway), await connect(gateway)
    first.send(head + b"x" * 6000)
    await eventually(lambda: gateway.state.held_bytes == 6000, "the first body is held")
    second.send(head + b"x" * 6000)
    response = await second.response()
    assert (response.status, response.code) == (503, "gateway_memory")
    first.abort()
    await eventually(lambda: gateway.state.held_bytes == 0, "nothing is held")


def test_body_in_tiny_chunks_takes_little_more_than_is_counted() -> None:
    link = ClientLink(GatewayState(config()))
    reader = RequestReader(link)
    reader.feed(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(50):
        reader.feed(chunk(b"xy") * 2000)
    request = reader.request
    assert request is not None and request.held_bytes == 200_000
    held = sys.getsizeof(request.pieces) + sum(map(sys.getsizeof, request.pieces))
    assert held < 1.5 * request.held_bytes
    assert request.body() == b"xy" * 100_000


async def test_chunks_that_are_mostly_framing_are_refused(make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(max_head_bytes=4096))
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1")
    client.send(b";" + b"x" * 1_000_000)
    assert (await client.response()).status == 400


@pytest.mark.parametrize(
    "start", [b"GET /live", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"]
)
async def test_slow_sender_is_a_408(start: bytes, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(head_timeout_s=0.3, body_timeout_s=0.3))
    client.send(start)
    assert (await client.response()).status == 408
    assert await client.at_end()


async def test_idle_connection_is_closed(make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(keepalive_s=0.3))
    assert (await client.get("/livez")).status == 200
    assert await client.at_end()


async def test_client_that_never_reads_is_cut_off(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def flood(seen: Seen) -> None:
        await seen.send(STREAM_HEAD)
        while True:
            await seen.send(chunk(event("x" * 65536)))

    upstream = await make_upstream(flood)
    gateway = await make_gateway(upstream, client_stall_s=0.5)
    client = await connect(gateway)
    client.writer.transport.pause_reading()
    client.send(post_bytes(ASK))
    await asyncio.wait_for(upstream.ended.wait(), DEADLINE_S)
    await eventually(lambda: not gateway.state.connections, "the connection is gone")


async def test_answer_arrives_though_the_client_is_still_sending(make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(max_body_bytes=1000))
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n" + b"x" * 4_000_000)
    assert (await client.response()).status == 413


async def test_client_that_sent_ahead_and_left_ends_the_engines_work(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream(until_closed)
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    client.send(post_bytes(ASK) * 3)
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    client.abort()
    await asyncio.wait_for(upstream.ended.wait(), DEADLINE_S)
    await eventually(lambda: gateway.state.held_bytes == gateway.state.in_flight == 0, "nothing is left of it")
    assert len(upstream.seen) == 1


def stream_after(go_on: asyncio.Event) -> Script:
    """Send the beginning of a stream, and the rest once the event is set."""

    async def stream(seen: Seen) -> None:
        await seen.send(STREAM_HEAD + chunk(event("a")))
        await go_on.wait()
        await seen.send(chunk(event("b")) + b"0\r\n\r\n")

    return stream


@pytest.mark.parametrize("script", [echo_after, stream_after])
async def test_client_that_closes_only_its_side_gets_its_answer(
    script: Any, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    """As ``nc`` and BusyBox's ``wget`` do. Where no part of the answer is there, an interim response comes first."""
    go_on = asyncio.Event()
    upstream = await make_upstream(script(go_on))
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    client.send(post_bytes(ASK))
    client.writer.write_eof()
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    await asyncio.sleep(0.5)  # two sweeps
    go_on.set()
    answer = await client.response()
    assert (answer.status, answer.complete) == (200, True)
    assert answer.body == json.dumps(ASK).encode() or event("a") + event("b") == answer.body
    assert await client.at_end()
    await eventually(
        lambda: not gateway.state.connections and not upstream.ended.is_set(), "the engine was not cut off"
    )


@pytest.mark.parametrize("has_begun", [False, True])
async def test_client_that_closes_both_sides_ends_the_engines_work(
    has_begun: bool, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def stream(seen: Seen) -> None:
        while has_begun:
            await seen.send((STREAM_HEAD if seen.head else b"") + chunk(event("a")))
            seen.head = b""
            await asyncio.sleep(0.1)
        await until_closed(seen)

    upstream = await make_upstream(stream)
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    client.send(post_bytes(ASK))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    if has_begun:
        assert b"200 OK" in await client.read_some()
    client.writer.close()
    await eventually(lambda: gateway.state.held_bytes == gateway.state.in_flight == 0, "nothing is left of it")
    await asyncio.wait_for(upstream.ended.wait(), DEADLINE_S)
    assert not gateway.state.connections


@pytest.mark.parametrize("more", [b"", post_bytes(ASK), b"POST /v1"])
async def test_client_that_closes_its_side_counts_as_gone_where_nothing_could_show_it_later(
    more: bytes, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    """An HTTP/1.0 client knows no interim response; others sent ahead, and a part of a request asks for nothing."""
    upstream = await make_upstream(until_closed)
    client = await connect(await make_gateway(upstream))
    request = post_bytes(ASK)
    client.send(request + more if more else request.replace(b"HTTP/1.1", b"HTTP/1.0"))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    client.writer.write_eof()
    await asyncio.wait_for(upstream.ended.wait(), DEADLINE_S)


async def test_client_that_does_not_take_the_end_of_its_answer_is_cut_off(make_gateway: Any) -> None:
    gateway = await make_gateway(client_stall_s=0.5, keepalive_s=0.3)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", gateway.port))
    slow.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    await eventually(lambda: bool(gateway.state.connections), "the connection is there")
    await eventually(lambda: not gateway.state.connections, "the connection is gone")
    slow.close()


class SlowTransport:
    """A transport whose client takes what a test says."""

    def __init__(self) -> None:
        self.waiting = 10_000_000
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def get_extra_info(self, name: str) -> None:
        return None

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return False

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("closing", [False, True])
async def test_client_that_reads_slowly_gets_all_of_its_answer(closing: bool) -> None:
    limits = GatewayLimits(client_stall_s=100.0, keepalive_s=1000.0)
    connection, transport = ClientConnection(GatewayState(config(limits=limits))), SlowTransport()
    connection.connection_made(transport)
    if closing:
        connection.close()
    else:
        connection.pause_writing()
    now_s = time.monotonic()
    for _ in range(5):
        connection.sweep(now_s)
        transport.waiting -= 1000
        now_s += 80.0
        connection.sweep(now_s)
        assert not transport.aborted
    connection.sweep(now_s + 90.0)
    assert not transport.aborted
    connection.sweep(now_s + 110.0)
    assert transport.aborted


@pytest.mark.parametrize("has_all", [False, True])
async def test_answers_that_were_written_and_then_cut_off_are_counted(*, has_all: bool) -> None:
    state = GatewayState(config())
    connection = ClientConnection(state)
    connection.connection_made(SlowTransport())
    if not has_all:
        connection.pause_writing()
    connection.connection_lost(None)
    assert state.metrics.snapshot()["events"].get("answer_cut_off", 0) == (not has_all)


@pytest.mark.parametrize("has_all", [False, True])
async def test_whether_a_slow_client_took_its_answer_is_told_once(*, has_all: bool) -> None:
    connection, told = ClientConnection(GatewayState(config())), list[bool]()
    connection.connection_made(SlowTransport())
    connection.pause_writing()
    connection.taken = told.append
    if has_all:
        connection.resume_writing()
        connection.pause_writing()
    connection.connection_lost(None)
    assert told == [has_all]


async def test_next_request_that_trickles_beside_an_answer_is_refused(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream(until_closed)
    gateway = await make_gateway(upstream, body_timeout_s=0.3, min_body_bytes_per_s=1_000_000)
    client = await connect(gateway)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 40000\r\n\r\n"
    client.send(post_bytes(ASK) + head + b"x" * 30_000)
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    await eventually(lambda: gateway.state.held_bytes > 30_000, "the part of a body is there")
    await eventually(lambda: gateway.state.held_bytes < 1000, "the part of a body is forgotten")


class BrokenConnection:
    def __init__(self, was_cut: asyncio.Event) -> None:
        self.cut = was_cut.set

    def sweep(self, now_s: float) -> None:
        raise ZeroDivisionError

    def stop_when_idle(self) -> None:
        pass


async def test_defect_in_one_connection_does_not_end_the_sweep_of_others(make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway(keepalive_s=0.3)
    cut = asyncio.Event()
    broken = BrokenConnection(cut)
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, report: reports.append(report["message"]))
    gateway.state.connections.add(broken)
    client = await connect(gateway)
    assert (await client.get("/livez")).status == 200
    assert await client.at_end()
    gateway.state.connections.discard(broken)
    assert cut.is_set() and reports
