"""Requests made up by rule: whole ones arrive as they were sent, however they are cut; broken ones break nothing."""

from __future__ import annotations

import json
from typing import Any

from arena import MARK, Arena, check_engine_saw_only_whole_requests, check_nothing_is_left
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])

bodies = st.text(max_size=60).map(lambda text: json.dumps({"model": "tiny", "prompt": text}).encode())
cuts = st.lists(st.integers(1, 50), max_size=12)


@st.composite
def chunked_bodies(draw: Any, body: bytes) -> bytes:
    """The body in chunks of any sizes, with the freedoms that the standard leaves."""
    out = b""
    while body:
        size = draw(st.integers(1, len(body)))
        number = draw(st.sampled_from([b"%x", b"%X", b"0%x", b"%x;a", b'%x;a="b c"'])) % size
        out += number + b"\r\n" + body[:size] + b"\r\n"
        body = body[size:]
    return out + draw(st.sampled_from([b"0\r\n\r\n", b"00\r\n\r\n", b"0\r\nx-note: y\r\n\r\n"]))


@st.composite
def whole_requests(draw: Any) -> tuple[bytes, bytes]:
    """A request that is right, and its body."""
    body = draw(bodies)
    name = draw(st.sampled_from([b"host", b"Host", b"HOST"]))
    lines = [name + b": x", *draw(st.lists(st.sampled_from([b"x-a: b", b"accept: */*", b"x-empty:"]), max_size=3))]
    if draw(st.booleans()):
        lines.append(b"content-length: %d" % len(body))
        sent = body
    else:
        lines.append(b"transfer-encoding: " + draw(st.sampled_from([b"chunked", b"Chunked"])))
        sent = draw(chunked_bodies(body))
    head = b"POST /v1/completions HTTP/1.1\r\n" + b"\r\n".join(draw(st.permutations(lines)))
    return head + b"\r\n\r\n" + sent, body


def cut_up(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


@SETTINGS
@given(st.lists(whole_requests(), min_size=1, max_size=4), cuts)
def test_whole_requests_arrive_as_they_were_sent(
    arena: Arena, requests: list[tuple[bytes, bytes]], sizes: list[int]
) -> None:
    played = arena.play(cut_up(b"".join(sent for sent, _ in requests), sizes), answers=len(requests))
    assert played.statuses == [200] * len(requests)
    assert [json.loads(seen.body) for seen in played.seen] == [json.loads(body) for _, body in requests]
    check_engine_saw_only_whole_requests(played)
    check_nothing_is_left(arena, played)


NOISE = st.sampled_from(
    [
        b"transfer-encoding: chunked\r\n",
        b"transfer-encoding: identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"content-length: 5\r\n",
        b"content-length: 0\r\n",
        b"Content-Length:\t7\r\n",
        b"connection: keep-alive, content-length\r\n",
        b"connection: close\r\n",
        b"expect: 100-continue\r\n",
        b"upgrade: h2c\r\nconnection: upgrade\r\n",
        b"host: y\r\n",
        b" folded\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"\x00",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"ffffffffffffffff\r\n",
        b"POST /v1/smuggled HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b'{"model":"tiny","prompt":"x"}',
        b"x-" + MARK + b": 1\r\n",
    ]
) | st.binary(max_size=12)


@st.composite
def damaged_requests(draw: Any) -> bytes:
    """Right requests with noise put in, or bytes taken out or turned."""
    data = bytearray(b"".join(sent for sent, _ in draw(st.lists(whole_requests(), min_size=1, max_size=2))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["insert", "insert", "remove", "turn"])):
            case "insert":
                data[at:at] = draw(NOISE)
            case "remove":
                del data[at : at + draw(st.integers(1, 20))]
            case _ if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case _:
                pass
    return bytes(data)


@settings(SETTINGS, max_examples=200)
@given(damaged_requests(), cuts)
def test_damaged_requests_break_nothing(arena: Arena, data: bytes, sizes: list[int]) -> None:
    played = arena.play(cut_up(data, sizes))
    assert played.raw == b"" or played.raw.startswith(b"HTTP/1.1 ")
    check_nothing_is_left(arena, played)
    for seen in played.seen:
        head = seen.head.lower()
        assert head.count(b"\r\ncontent-length:") == 1
        assert b"\r\ntransfer-encoding:" not in head
        assert isinstance(json.loads(seen.body), dict)
