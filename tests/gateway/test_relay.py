"""Framing of responses: every byte of the body, whole events, proper ends."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longboat.gateway.http.response_framing import Relay
from longboat.gateway.http.wire import Framing

HEAD = b"HEAD\r\n\r\n"
BODIES = st.lists(st.sampled_from([b"data: x", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b": c", b"\r"]), max_size=30).map(
    b"".join
)


def block(relay: Relay, body: bytes, *, last: bool) -> bytes:
    """What the client gets for the bytes that arrived together."""
    return relay.framed(relay.whole_events(body, last=last) if relay.events else body, last=last)


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({c % (len(body) + 1) for c in cuts} | {0, len(body)})
    return [body[a:b] for a, b in pairwise(at)]


def unchunk(wire: bytes) -> bytes:
    body = b""
    while wire:
        size, _, wire = wire.partition(b"\r\n")
        length = int(size, 16)
        assert wire[length : length + 2] == b"\r\n"
        body, wire = body + wire[:length], wire[length + 2 :]
        if length == 0:
            assert not wire
    return body


@given(BODIES, st.lists(st.integers(0, 500)), st.booleans(), st.sampled_from([Framing.CHUNKED, Framing.IDENTITY]))
def test_relay_hands_out_every_byte_in_order(body: bytes, cuts: list[int], events: bool, framing: Framing) -> None:
    relay = Relay(HEAD, framing, events=events)
    out = b"".join(block(relay, piece, last=False) for piece in pieces(body, cuts)) + block(relay, b"", last=True)
    assert out.startswith(HEAD)
    wire = out[len(HEAD) :]
    assert (unchunk(wire) if framing is Framing.CHUNKED else wire) == body
    assert relay.bytes_out == len(body)


@given(BODIES, st.lists(st.integers(0, 500)))
def test_relay_hands_out_whole_events_only(body: bytes, cuts: list[int]) -> None:
    relay = Relay(b"", Framing.IDENTITY, events=True)
    for piece in pieces(body, cuts):
        out = block(relay, piece, last=False)
        assert not out or re.search(rb"\n\n\Z|\r\n\r\n\Z", out)


def test_relay_writes_blocks_that_came_together_as_one_chunk() -> None:
    relay = Relay(HEAD, Framing.CHUNKED, events=True)
    assert block(relay, b"data: 1\n\ndata: 2\n\n", last=False) == HEAD + b"12\r\ndata: 1\n\ndata: 2\n\n\r\n"
    assert block(relay, b"data: 3\n\n", last=True) == b"9\r\ndata: 3\n\n\r\n0\r\n\r\n"


def test_relay_does_not_hold_an_endless_event() -> None:
    relay = Relay(HEAD, Framing.CHUNKED, events=True)
    blocks = [block(relay, b"x" * 100_000, last=False) for _ in range(30)]
    assert sum(map(len, blocks)) > 2_000_000
    assert b"\n\ndata: {" in relay.broken("gone", "engine_lost")


def test_relay_holds_the_head_until_there_is_something_to_say() -> None:
    relay = Relay(HEAD, Framing.CHUNKED, events=True)
    assert block(relay, b"data: half", last=False) == b""
    assert not relay.started
    assert block(relay, b"\n\n", last=False).startswith(HEAD)
