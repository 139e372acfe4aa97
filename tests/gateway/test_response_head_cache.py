"""Answers whose head is known are read as the parser reads them, however their bytes come, whatever they are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httptools
import pytest
from gateway_lab import endpoint
from hypothesis import given
from hypothesis import strategies as st

from longboat.gateway.config import GatewayLimits
from longboat.gateway.http.response_head import ResponseHead, ResponseHeadError, parse_response_head, replica_line
from longboat.gateway.http.wire import Framing
from longboat.gateway.native.leaf_work import whole_chunks
from longboat.gateway.upstreams.connection import ResponseSink, UpstreamConnection
from longboat.gateway.upstreams.response_head_cache import cache_response_head, cached_response_head
from longboat.gateway.upstreams.upstream import Upstream

_numbers = itertools.count()


def fresh_line() -> bytes:
    """A header line that no answer had before: what is known is kept for the whole process."""
    return b"x-answer: %012d\r\n" % next(_numbers)


@dataclass
class Reading:
    """What came of an answer. head: as a client would get it; end: "open" while more is to come."""

    head: bytes = b""
    body: bytes = b""
    end: str = "open"
    reusable: bool = False

    def begin(self, head: ResponseHead, length: int | None) -> None:
        assert not self.head
        told = head.length if length is None else length
        lines = head.for_client(
            Framing.IDENTITY, sized=head.sized, request_id="r", replica=replica_line("r0"), close=False, length=told
        )
        self.head = b"%d %d %b" % (head.status, head.events, lines)


class ParserReading(Reading):
    """By the parser alone: what the gateway's own reading is measured by."""

    def __init__(self) -> None:
        super().__init__()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._interim = self._until_end = self._complete = self._keeps = False
        self._arrived = b""

    def feed(self, data: bytes) -> None:
        self._arrived = b""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.end = "lost"
            return
        self.body += self._arrived
        if self._complete:
            self.end, self.reusable = "complete", self._keeps

    def eof(self) -> None:
        self.end = "complete" if self._until_end else "lost"

    def on_message_begin(self) -> None:
        if self._complete:
            raise ResponseHeadError("a second answer")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = status < 200
        if not self._interim:
            head = parse_response_head(status, self._headers)
            self._until_end = head.until_end
            self._keeps = not head.until_end and self._parser.should_keep_alive()
            self.begin(head, None)

    def on_body(self, body: bytes) -> None:
        self._arrived += body

    def on_message_complete(self) -> None:
        self._complete = not self._interim


class Transport:
    """A connection's other half that takes everything."""

    closing = False

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    close = abort

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *option: None)

    def write(self, data: bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Sink(ResponseSink):
    """Who wanted the answer."""

    def __init__(self) -> None:
        self.got = Reading()

    def on_head(self, head: ResponseHead, length: int | None = None) -> None:
        assert self.got.end == "open"
        self.got.begin(head, length)

    def on_whole(self, head: ResponseHead, length: int, body: bytes) -> None:
        self.on_head(head, length)
        self.on_block(body, last=True)

    def on_block(self, body: bytes, *, last: bool) -> None:
        assert self.got.end == "open"
        self.got.body += body
        if last:
            self.got.end = "complete"

    def on_lost(self, detail: str) -> None:
        assert self.got.end == "open"
        self.got.end = "lost"


def empty_lines_follow(wire: bytes) -> bool:
    """Whether there are such after a body of known length: the parser passes over them, but nobody has to."""
    head, _, rest = wire.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    surplus = rest[int(length[1]) :] if length else b""
    return bool(surplus) and not surplus.strip(b"\r\n")


def read(pieces: Sequence[bytes]) -> tuple[Reading, Reading]:
    """What the gateway makes of an answer that arrives in these pieces and then ends, and what the parser makes of it.

    Nothing is read after the answer's end.
    """
    upstream = Upstream(endpoint("http://127.0.0.1:9"), GatewayLimits())
    connection, sink, right = UpstreamConnection(upstream.connections.keep), Sink(), ParserReading()
    connection.connection_made(Transport())
    connection.send(sink, b"", b"")
    for number, piece in enumerate(pieces, 1):
        connection.path.data_received(piece)
        right.feed(piece)
        if (sink.got.end, right.end) == ("lost", "complete") and empty_lines_follow(b"".join(pieces[:number])):
            right.end, right.body, right.reusable = "lost", sink.got.body, False
        assert (sink.got.end, len(sink.got.body)) == (right.end, len(right.body))
        if right.end != "open":
            break
    else:
        connection.connection_lost(None)
        right.eof()
    sink.got.reusable = upstream.connections.take() is connection
    return sink.got, right


def facts(reading: Reading) -> tuple[bytes, bytes, str, bool]:
    return reading.head, reading.body, reading.end, reading.reusable


def check(pieces: Sequence[bytes]) -> Reading:
    got, right = read(pieces)
    assert facts(got) == facts(right)
    return got


def cut(wire: bytes, at: Sequence[int]) -> list[bytes]:
    """In pieces that end at these places, none of them empty."""
    places = sorted({0, len(wire), *(place for place in at if place < len(wire))})
    return [wire[a:b] for a, b in itertools.pairwise(places)]


# answers, good and bad

BODIES = st.lists(st.binary(max_size=40) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"x" * 300]), max_size=5)
SIZES = st.sampled_from([b"%x", b"%x", b"%X", b"0%x", b"%x;a=1", b'%x ; b="c"', b"%x ", b"-%x", b"%xz"])
TRAILERS = st.sampled_from([b"", b"", b"", b"x-t: 1\r\n", b"content-length: 3\r\n", b"broken\r\n"])
SURPLUS = st.sampled_from(
    [b"", b"", b"", b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n"]
)
INTERIM = st.sampled_from(
    [
        b"", b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n", b"\r\n", b"\r\n\r\n",
    ]
)  # fmt: skip
STATUSES = st.sampled_from([b"200 OK"] * 4 + [b"404 Not Found", b"503 Busy", b"204 No Content", b"304 Not Modified"])
EXTRAS = st.sampled_from(
    [b"", b"content-type: application/json\r\n", b"Content-Type: text/event-stream\r\n", b"connection: close\r\n"]
)
LENGTH_NAMES = st.sampled_from([b"content-length: ", b"Content-Length: ", b"CONTENT-LENGTH: ", b"content-length:  "])
CODINGS = st.sampled_from([b"transfer-encoding: chunked\r\n"] * 3 + [b"Transfer-Encoding: Chunked\r\n"])


@dataclass
class Kind:
    """Answers that differ in their body and its length only. The head's lines end with the one that frames it."""

    status: bytes
    lines: bytes
    framing: bytes

    @property
    def chunked(self) -> bool:
        return self.framing.endswith(b"\r\n")

    def wire(self, pieces: Sequence[bytes], size: bytes = b"%x", end: bytes = b"\r\n") -> bytes:
        if not self.chunked:
            body = b"".join(pieces)
            return self.head(b"%b%d\r\n" % (self.framing, len(body))) + body
        chunks = (b"%b\r\n%b\r\n" % (size % len(piece), piece) for piece in pieces if piece)
        return self.head(self.framing) + b"".join(chunks) + b"0\r\n" + end

    def head(self, framing: bytes) -> bytes:
        return b"HTTP/1.1 %b\r\n%b%b\r\n" % (self.status, self.lines, framing)


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    return Kind(draw(STATUSES), draw(EXTRAS) + fresh_line(), draw(LENGTH_NAMES | CODINGS))


@st.composite
def splits(draw: st.DrawFn, wire: bytes) -> list[bytes]:
    places = st.integers(1, max(1, len(wire)))
    return cut(wire, draw(st.just(()) | st.lists(places, max_size=8) | st.just(range(1, len(wire)))))


@st.composite
def damaged(draw: st.DrawFn, wire: bytes) -> bytes:
    """Some bytes of it are others, more or fewer."""
    begin = draw(st.integers(0, len(wire)))
    end = min(len(wire), begin + draw(st.integers(0, 4)))
    new = draw(st.binary(max_size=3) | st.sampled_from([b"\r\n", b"\n", b"\r\n\r\n", b"7", b"0", b" ", b"\x00"]))
    return wire[:begin] + new + wire[end:]


@given(st.data(), kinds())
def test_any_split_of_a_good_answer_is_read_as_the_parser_reads_it(data: st.DataObject, kind: Kind) -> None:
    check([kind.wire([b"first"])])
    if kind.framing not in (b"CONTENT-LENGTH: ", b"content-length:  ") and kind.status[:3] not in (b"204", b"304"):
        assert cached_response_head(kind.wire([])) is not None
    for _ in range(3):
        body = data.draw(BODIES)
        got = check(data.draw(splits(kind.wire(body))))
        if kind.status[:3] not in (b"204", b"304"):
            assert (got.body, got.end) == (b"".join(body), "complete")


@given(st.data(), kinds(), INTERIM)
def test_any_split_of_a_hostile_answer_is_read_as_the_parser_reads_it(
    data: st.DataObject, kind: Kind, interim: bytes
) -> None:
    check([interim + kind.wire([b"first"])])
    check([kind.wire([b"second"])])
    for _ in range(3):
        wire = kind.wire(data.draw(BODIES), data.draw(SIZES), data.draw(TRAILERS) + b"\r\n")
        wire = data.draw(INTERIM) + wire + data.draw(SURPLUS)
        if data.draw(st.booleans()):
            wire = data.draw(damaged(wire))
        if data.draw(st.booleans()):
            wire = wire[: data.draw(st.integers(0, len(wire)))]
        check(data.draw(splits(wire)))


@pytest.mark.parametrize("lines", [b"\r\n", b"\r\n\r\n", b"\n", b"\r\n\r\n\r\n"])
def test_empty_lines_before_an_answer_teach_nothing_about_another(lines: bytes) -> None:
    """The parser passes over them, so that they could be taken for a head."""
    for status in (b"200 OK", b"503 Busy"):
        kind = Kind(status, fresh_line(), b"transfer-encoding: chunked\r\n")
        got = check([lines + kind.wire([b"body"])])
        assert got.head.startswith(status[:3]) and got.end == "complete"


def test_answer_may_be_read_in_single_bytes_after_its_known_head() -> None:
    kind = Kind(b"200 OK", fresh_line(), b"transfer-encoding: chunked\r\n")
    wire = kind.wire([b"one", b"\r\n", b"0\r\n\r\n" * 9], b"%X;a=1", b"x-t: 1\r\n\r\n")
    head_bytes = wire.index(b"\r\n\r\n") + 4
    check([wire])
    got = check([wire[:head_bytes], *cut(wire[head_bytes:], range(len(wire)))])
    assert (got.body, got.end) == (b"one\r\n" + b"0\r\n\r\n" * 9, "complete")


# heads

SIZED = Kind(b"200 OK", fresh_line(), b"Content-Length: ")
CHUNKED = Kind(b"200 OK", fresh_line(), b"Transfer-Encoding: chunked\r\n")


def head_of(wire: bytes) -> ResponseHead:
    reading = ParserReading()
    heads: list[ResponseHead] = []
    reading.begin = lambda head, length: heads.append(head)  # type: ignore[method-assign]
    reading.feed(wire)
    return heads[0]


@pytest.fixture
def known() -> Iterator[None]:
    """Have both kinds be known. Twice: all heads are forgotten when there are too many, and the second may be one."""
    for kind in (SIZED, CHUNKED, SIZED, CHUNKED):
        cache_response_head(kind.wire([b"x"]), head_of(kind.wire([b"x"])), reusable=True)
    yield


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("body", [b"", b"x", b"\r\n\r\n", b"x" * 100_000], ids=len)
def test_head_is_known_for_a_body_of_any_length(body: bytes) -> None:
    wire = SIZED.wire([body])
    found = cached_response_head(wire)
    assert found is not None
    answer, body_at, length = found
    assert (answer.head.status, answer.reusable, wire[body_at:], length) == (200, True, body, len(body))
    assert cached_response_head(wire[:body_at]) is not None


@pytest.mark.usefixtures("known")
def test_head_of_chunks_is_known_and_tells_no_length() -> None:
    wire = CHUNKED.wire([b"abc"])
    found = cached_response_head(wire)
    assert found is not None and (found[2], wire[found[1] :]) == (-1, b"3\r\nabc\r\n0\r\n\r\n")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "wire",
    [
        b"",
        SIZED.wire([b""])[:-1],
        CHUNKED.wire([b""]).partition(b"\r\n\r\n")[0],
        SIZED.wire([b"x"]).replace(b"Length: 1", b"Length: "),
        SIZED.wire([b"x"]).replace(b"Length: 1", b"Length: +1"),
        SIZED.wire([b"x"]).replace(b"Length: 1", b"Length: 1 "),
        SIZED.wire([b"x"]).replace(b"Length: 1", b"Length: 1, 1"),
        SIZED.wire([b"x"]).replace(b"Length: 1", b"Length: 1\r\nContent-Length: 1"),
        SIZED.wire([b"x"]).replace(b"Length: 1", b"Length: " + b"9" * 40),
        SIZED.wire([b"x"]).replace(b"200 OK", b"200 Ok"),
        SIZED.wire([b"x"]).replace(b"HTTP/1.1", b"HTTP/1.0"),
        CHUNKED.wire([b"x"]).replace(b"chunked", b"gzip, chunked"),
        CHUNKED.wire([b"x"]).replace(b"chunked", b"chunked\r\nContent-Length: 1"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED.wire([b"x"]),
        b"\r\n" + CHUNKED.wire([b"x"]),
    ],
)
def test_anything_else_is_left_to_the_parser(wire: bytes) -> None:
    assert cached_response_head(wire) is None


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\n%b\r\nuntil the end",
        b"HTTP/1.1 204 No Content\r\n%b\r\n",
        b"HTTP/1.1 304 Not Modified\r\n%bcontent-length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n%bCONTENT-LENGTH: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\n%bcontent-length:  1\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\n%bcontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\n%bx-long: " + b"x" * 5000 + b"\r\ncontent-length: 1\r\n\r\nx",
        b"\r\n\r\nHTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\n",
    ],
)
def test_odd_heads_are_not_learned(wire: bytes) -> None:
    wire = wire % fresh_line()
    cache_response_head(wire, head_of(wire), reusable=True)
    assert cached_response_head(wire) is None


def test_head_with_bare_line_ends_is_not_learned() -> None:
    """Its end may be elsewhere than where it is looked for."""
    wire = b"HTTP/1.1 200 OK\n%btransfer-encoding: chunked\n\n2\r\nok\r\n0\r\n\r\n" % fresh_line()
    cache_response_head(wire, ResponseHead(200, [(b"transfer-encoding", b"chunked")]), reusable=True)
    assert cached_response_head(wire) is None


def test_head_that_came_in_pieces_is_not_learned() -> None:
    wire = Kind(b"200 OK", fresh_line(), b"content-length: ").wire([b"x"])
    check([wire[:20], wire[20:]])
    assert cached_response_head(wire) is None
    check([wire])
    assert cached_response_head(wire) is not None


def test_memory_for_heads_is_bounded() -> None:
    wires = [Kind(b"200 OK", fresh_line(), b"content-length: ").wire([b"x"]) for _ in range(5000)]
    for wire in wires:
        cache_response_head(wire, head_of(wire), reusable=True)
    assert 0 < sum(cached_response_head(wire) is not None for wire in wires) <= 1024


# chunks


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"3\r\nabc\r\n", (b"abc", False)),
        (b"3\r\nabc\r\n1\r\nd\r\n", (b"abcd", False)),
        (b"3\r\nabc\r\n0\r\n\r\n", (b"abc", True)),
        (b"0\r\n\r\n", (b"", True)),
        (b"5\r\n0\r\n\r\n\r\n", (b"0\r\n\r\n", False)),
        (b"1f4\r\n" + b"x" * 500 + b"\r\n", (b"x" * 500, False)),
        (b"3\r\nabc", None),
        (b"3\r\nabc\r", None),
        (b"3\r\nabcd\r\n", None),
        (b"3\r\nabc\r\n3", None),
        (b"3\r\nabc\r\n0\r\n", None),
        (b"0\r\n\r\n3\r\nabc\r\n", None),
        (b"0\r\nx: 1\r\n\r\n", None),
        (b"3;a=1\r\nabc\r\n", None),
        (b"03\r\nabc\r\n", None),
        (b"C\r\n" + b"x" * 12 + b"\r\n", None),
        (b"-1\r\nabc\r\n", None),
        (b"\r\nabc\r\n", None),
        (b"3\nabc\n", None),
        (b"fffffffffffffffff\r\nabc\r\n", None),
    ],
)
def test_whole_chunks_are_those_and_nothing_else(data: bytes, found: tuple[bytes, bool] | None) -> None:
    assert whole_chunks(data, 0) == found
    assert whole_chunks(b"head" + data, 4) == found


@given(st.data(), BODIES, SIZES, TRAILERS)
def test_whole_chunks_say_what_the_parser_says_or_nothing(
    data: st.DataObject, body: list[bytes], size: bytes, trailer: bytes
) -> None:
    kind = Kind(b"200 OK", b"", b"transfer-encoding: chunked\r\n")
    head, _, wire = kind.wire(body, size, trailer + b"\r\n").partition(b"\r\n\r\n")
    if data.draw(st.booleans()):
        wire = data.draw(damaged(wire))
    wire = wire[: data.draw(st.integers(0, len(wire)) | st.just(len(wire)))]
    found = whole_chunks(wire, 0)
    if found is None:
        return
    right = ParserReading()
    right.feed(head + b"\r\n\r\n" + wire)
    assert (right.body, right.end) == (found[0], "complete" if found[1] else "open")
    right.feed(b"1\r\nx\r\n")  # what follows is a chunk, or too much
    assert right.end == ("lost" if found[1] else "open")


@given(BODIES)
def test_whole_chunks_as_engines_send_them_are_read(body: list[bytes]) -> None:
    kind = Kind(b"200 OK", b"", b"transfer-encoding: chunked\r\n")
    wire = kind.wire(body).partition(b"\r\n\r\n")[2]
    assert whole_chunks(wire, 0) == (b"".join(body), True)
    assert whole_chunks(wire[:-5], 0) == (b"".join(body), False)
