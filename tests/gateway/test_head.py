"""Heads that came before are known again by their bytes, and by nothing less."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_lab import eventually, post_bytes

from longboat.gateway.calls.head import KnownHeads
from longboat.gateway.http.request import Request

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\nX-Keep: 1"


def request_of(data: bytes, **changes: Any) -> Request:
    request = Request(url=b"/v1/x", method="POST")
    request.noted.update({b"host": b"h", b"content-length": data.split(b"Content-Length: ")[1].split(b"\r\n")[0]})
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def sent(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + b"\r\n\r\n" + body


def learned() -> KnownHeads:
    heads = KnownHeads()
    heads.learn(sent(b"{}"), request_of(sent(b"{}")))
    return heads


def test_known_head_is_found_for_any_length_of_body() -> None:
    for body in (b"{}", b"", b"x" * 5000, b"\r\n\r\nPOST /v1/y HTTP/1.1\r\n"):
        data = sent(body)
        found = learned().match(data)
        assert found is not None
        assert data[found[1] :] == body
        assert found[0].request(body).url == b"/v1/x"


@pytest.mark.parametrize(
    "data",
    [
        sent(b"{}")[:-1],
        sent(b"{}") + b"x",
        sent(b"{}").replace(b"X-Keep: 1", b"X-Keep: 2"),
        sent(b"{}").replace(b"X-Keep: 1", b"Content-Length: 2"),
        sent(b"{}").replace(b"Content-Length: 2", b"Content-Length: +2"),
        sent(b"{}").replace(b"Content-Length: 2", b"Transfer-Encoding: chunked"),
        sent(b"{}").replace(b"POST", b"PUT"),
        b"GET / HTTP/1.1\r\n\r\n\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    assert learned().match(data) is None


@pytest.mark.parametrize("header", [b"x-request-id", b"traceparent", b"transfer-encoding", b"content-encoding"])
def test_heads_of_one_request_are_not_learned(header: bytes) -> None:
    request = request_of(sent(b"{}"))
    request.noted[header] = b"1"
    heads = KnownHeads()
    heads.learn(sent(b"{}"), request)
    assert heads.match(sent(b"{}")) is None


async def test_known_requests_are_answered_as_the_first_one_was(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    for prompt in ("a", "bb" * 1000, "c"):
        answer = await client.post({"model": "tiny", "prompt": prompt}, "/v1/completions", "x-keep: 1\r\n")
        assert answer.status == 200
    assert [seen.body.count(b"b") for seen in upstream.seen] == [0, 2000, 0]
    assert len({seen.header("x-request-id") for seen in upstream.seen}) == 3
    assert all(seen.header("x-keep") == "1" for seen in upstream.seen)
    client.send(post_bytes({"model": "tiny", "prompt": "d"}, "/v1/completions", "x-keep: 1\r\n") * 2)
    await eventually(lambda: len(upstream.seen) == 5, "both pipelined requests are sent")
