"""An engine as this process sees it: its address, its idle connections, and one connection's reading of responses."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from typing import Any, Protocol
from urllib.parse import urlsplit

import httptools

from longboat.core.errors import UserInputError
from longboat.core.states import Endpoint
from longboat.gateway.answer_head import AnswerHead, AnswerHeadError, answer_head
from longboat.gateway.config import GatewayLimits
from longboat.gateway.known_answers import KnownAnswer, known_answer, learn_answer, whole_chunks
from longboat.gateway.native import ChunkPath
from longboat.routing.breaker import Breaker
from longboat.routing.poison import Admitted
from longboat.routing.watchdog import Pace

__all__ = ("MovableStream", "ResponseSink", "Upstream", "UpstreamConnection", "request_end")


# A host that vanished without a word is noticed in about 11 s, though nothing is being sent to it.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
)


class ResponseSink(Protocol):
    """Who wants a response: told of its head, its body block by block, and its end.

    Where it sets the connection's ``write`` and ``direct`` (see ``ChunkPath``), whole chunks go there as they arrive.
    """

    def on_head(self, head: AnswerHead, length: int | None = None) -> None:
        """The answer begins. Raises nothing. length: of its body, where the head is known from another answer."""

    def on_whole(self, head: AnswerHead, length: int, body: bytes) -> None:
        """``on_head`` and the only ``on_block`` of an answer that came at once. The connection is free again."""

    def on_block(self, body: bytes, *, last: bool) -> None:
        """Everything that arrived together. ``last``: the response is complete and the connection is free again."""

    def on_lost(self, detail: str) -> None:
        """The connection ended, or spoke nonsense, before the response was complete."""


class MovableStream(Protocol):
    """An answer that can go on elsewhere."""

    def replica_lost(self, detail: str, reason: str) -> None:
        """The engine that gives it is held for lost, though its connection may still be there. reason: for counting"""

    def admitted(self, now_s: float) -> Admitted:
        """How far it is at its engine."""

    @property
    def silent_s(self) -> float:
        """How long its engine sent it nothing; infinite while nothing is asked of one."""


class Upstream:
    """One endpoint, live. Fits ``routing.pick.EndpointView``; counts only what this process sends."""

    __slots__ = (
        "_base_path",
        "_doubted",
        "_idle",
        "_own_lines",
        "_target",
        "api_key",
        "beats",
        "breaker",
        "capacity",
        "ejected",
        "gone",
        "key",
        "leaving",
        "limits",
        "lost",
        "model",
        "outstanding",
        "pace",
        "ready",
        "replica",
        "resume",
        "revision",
        "room_told",
        "streams",
        "told_ready",
    )

    def __init__(self, endpoint: Endpoint, limits: GatewayLimits) -> None:
        """:raises UserInputError: the endpoint's URL is not http://HOST:PORT."""
        parts = _split(endpoint.url)
        self._target = (parts[0], parts[1])
        self.model = endpoint.model
        self.replica = endpoint.replica
        self.key = f"{endpoint.replica}/{endpoint.generation}@{endpoint.url}"
        self.api_key = endpoint.api_key
        self.ready = self.told_ready = endpoint.ready
        self.resume = endpoint.resume
        self.revision = endpoint.revision
        self.beats = endpoint.beats
        self.leaving = endpoint.moving  # it is taken out, and its answers are to go elsewhere
        self.lost = ""  # why its heartbeats say that it does not work; empty: it does, or tells nothing
        self.streams: set[MovableStream] = set()  # those that want to hear when it is lost
        self.limits = limits
        self.capacity = limits.max_outstanding
        self.room_told: int | None = None  # slots for us by the engine's own account
        self.outstanding = 0
        self.breaker = Breaker(first_s=limits.suspect_s)
        self.pace = Pace()
        self.ejected = False  # much slower than its siblings
        self._doubted = False
        self.gone = False
        self._idle: deque[tuple[UpstreamConnection, float]] = deque()
        authorization = f"authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
        self._base_path = parts[2].encode("latin-1")
        self._own_lines = f"host: {parts[3]}\r\n{authorization}".encode("latin-1")

    def request_start(self, method: str, path: bytes, forwarded: list[bytes]) -> bytes:
        """The head of a request to this engine, ours in place of the client's where the two differ; up to the lines
        that ``request_end`` makes."""
        first = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self._base_path, path)
        return b"".join((first, self._own_lines, *forwarded))

    @property
    def target(self) -> tuple[str, int]:
        """Host and port."""
        return self._target

    @property
    def slots(self) -> int | None:
        """Requests that we may have there at once; None is no limit."""
        if self.capacity is None or self.room_told is None:
            return self.capacity
        return min(self.capacity, max(1, self.room_told))

    def get_head(self, path: bytes) -> bytes:
        """The whole of a GET on a connection of its own."""
        return b"GET %b%b HTTP/1.1\r\n%bconnection: close\r\n\r\n" % (self._base_path, path, self._own_lines)

    def take_idle(self) -> UpstreamConnection | None:
        """A pooled connection, the most recently used; None where there is none."""
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """:raises OSError: refused, unreachable, closed at once; TimeoutError (an OSError) after connect_timeout_s."""
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(lambda: connection, *self._target)
        except UnicodeError as error:  # from the name look-up
            raise OSError(f"{self._target[0]!r} is no host name") from error
        except asyncio.CancelledError:
            connection.abort()  # it may have been made in the meantime
            raise
        if not connection.usable:
            raise ConnectionResetError("the engine closed the connection at once")
        return connection

    def mark_suspect(self) -> None:
        """Avoid this endpoint for a moment."""
        self._doubted = True
        asyncio.get_running_loop().call_later(self.limits.suspect_s, self._trust)

    def learn(self, endpoint: Endpoint) -> None:
        """What a newer table says of it. It stays unready while it is lost."""
        self.told_ready = endpoint.ready
        self.ready = endpoint.ready and not self.lost
        self.resume, self.revision, self.beats = endpoint.resume, endpoint.revision, endpoint.beats
        self.leaving = endpoint.moving

    def mark_lost(self, detail: str, reason: str = "beats") -> None:
        """Nothing is sent there any more, and what runs there goes elsewhere. reason: one word, for counting"""
        self.lost, self.ready = detail, False
        self.close_idle(float("inf"))
        self.move_streams(detail, "moved" if self.leaving else reason)

    def move_streams(self, detail: str, reason: str = "moved") -> None:
        """What runs there goes elsewhere."""
        for stream in tuple(self.streams):
            stream.replica_lost(detail, reason)

    def mark_found(self) -> None:
        """It works again."""
        self.lost, self.ready = "", self.told_ready

    def keep(self, connection: UpstreamConnection) -> None:
        """Pool a connection whose response is complete, or close it where the endpoint has gone."""
        if self.gone:
            connection.close()
        else:
            self._idle.append((connection, time.monotonic()))

    def close_idle(self, before_s: float) -> None:
        """Close connections that were pooled before this time."""
        while self._idle and self._idle[0][1] < before_s:
            self._idle.popleft()[0].close()

    def retire(self) -> None:
        """The endpoint left the table: running responses go on, nothing is pooled any more."""
        self.gone = True
        self.close_idle(float("inf"))

    @property
    def suspect(self) -> bool:
        """Whether it is chosen only when nothing better is left."""
        if self.ejected or self._doubted:
            return True
        return not self.breaker.closed and self.breaker.avoids(time.monotonic())

    def _trust(self) -> None:
        self._doubted = False


class UpstreamConnection(ChunkPath, asyncio.Protocol):
    """One connection to an engine. Carries one request at a time; hands on each block of body as it arrives.

    Answers of known heads in whole chunks, or of a known length, never meet the parser. Where one turns out to be
    of another kind, the parser is given its head, and goes on from where the answer is.
    """

    __slots__ = (
        "_at_start",
        "_complete",
        "_headers",
        "_interim",
        "_left",
        "_parser",
        "_pieces",
        "_reusable",
        "_sink",
        "_transport",
        "_unparsed_head",
        "_until_end",
        "_upstream",
        "used",
    )

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: Any = None
        self._parser: Any = None  # of this answer; None while it needs none
        self._sink: ResponseSink | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._at_start = False  # nothing of the answer came yet
        self._complete = False
        self._interim = False
        self._until_end = False
        self._reusable = False
        self._left = -1  # bytes of a body of known length that are still to come; -1: it is in chunks, or parsed
        self._unparsed_head = b""  # what the parser is to be given before anything else
        self.used = False  # has carried a complete response

    # what the exchange calls

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, sink: ResponseSink, head: bytes, body: bytes) -> None:
        """Send one request; its response goes to ``sink``."""
        self._sink = sink
        self._complete = self._interim = self._until_end = self.between_chunks = self.direct = False
        self.write = self.itl = self.journal = None
        self._at_start = True
        self._left = -1
        self._parser = None
        self.quiet = self.num_events = self.bytes_out = 0
        if len(body) < 65536:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def pause(self) -> None:
        if self.usable:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.usable:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Give the response up: the engine sees the connection end at once."""
        self._sink = self.write = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self._sink = None
        if self._transport is not None:
            self._transport.close()

    # what the loop calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        sock = transport.get_extra_info("socket")
        for level, option, value in _SOCKET_OPTIONS:
            sock.setsockopt(level, option, value)

    def data_arrived(self, data: bytes) -> None:
        """What is not for the short way of ``ChunkPath``."""
        sink = self._sink
        if sink is None:  # an idle engine has nothing to say: what follows could not be told from an answer
            self.abort()
            return
        self.quiet = 0
        if self.between_chunks:
            # The parser is between two chunks before this one and after it, so it need not see it.
            chunks = whole_chunks(data)
            if chunks is not None:
                self._deliver_chunks(sink, chunks)
                return
        elif self._at_start:
            self._at_start = False
            known = known_answer(data)
            if known is not None:
                self._begin(sink, data, known)
                return
        elif self._left >= 0:
            self._deliver_part(sink, data)
            return
        self._parse(sink, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._parser = None
        sink = self._sink
        if sink is None:
            return
        if self._until_end and error is None:
            self._sink = None
            sink.on_block(b"", last=True)
        else:
            self._lose(str(error) if error else "it closed the connection")

    # without the parser

    def _begin(self, sink: ResponseSink, data: bytes, known: tuple[KnownAnswer, int, int]) -> None:
        answer, body_at, length = known
        self._reusable = answer.reusable
        if length >= 0:
            if len(data) == body_at + length:
                self._release()
                sink.on_whole(answer.head, length, data[body_at:])
                return
            sink.on_head(answer.head, length)
            self._left = length
            if len(data) > body_at or not length:
                self._deliver_part(sink, data[body_at:])
            return
        self._unparsed_head = data[:body_at]
        self.between_chunks = True
        sink.on_head(answer.head)
        if len(data) == body_at:
            return
        chunks = whole_chunks(data, body_at)
        if chunks is None:
            self._parse(sink, data[body_at:])
        else:
            self._deliver_chunks(sink, chunks)

    def _deliver_chunks(self, sink: ResponseSink, chunks: tuple[bytes, bool]) -> None:
        body, self._complete = chunks
        if self._complete:
            self._release()
        sink.on_block(body, last=self._complete)

    def _deliver_part(self, sink: ResponseSink, data: bytes) -> None:
        """Of a body whose length is known."""
        left = self._left - len(data)
        if left < 0 and not data[self._left :].strip(b"\r\n"):  # a line end after the body belongs to nothing
            data, left = data[: self._left], 0
        if left < 0:
            self._lose("it sent more than it had announced")
            return
        self._left = left
        if not left:
            self._complete = True
            self._release()
        sink.on_block(data, last=not left)

    # with the parser

    def _parse(self, sink: ResponseSink, data: bytes) -> None:
        parser = self._parser
        try:
            if parser is None:
                parser = self._parser = httptools.HttpResponseParser(self)
                if self.between_chunks:
                    parser.feed_data(self._unparsed_head)
                else:
                    self._unparsed_head = data  # it may be the whole of an answer's head
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, AnswerHeadError):
                raise  # a defect of ours: the loop reports it and closes the connection
            self._lose(f"its answer is not HTTP: {cause or error}")
            return
        if self.between_chunks and not data.endswith(b"\r\n"):
            self.between_chunks = False  # the parser has a part of the next chunk's size
        pieces = self._pieces
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._deliver(sink, body)
        elif self._complete:
            self._deliver(sink, b"")

    # what the parser calls

    def on_message_begin(self) -> None:
        if self._complete:
            raise AnswerHeadError("a second answer to one request")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.between_chunks:  # of an answer that began without the parser
            return
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            self._unparsed_head = b""  # what follows is not what these bytes began with
            return
        if self._sink is None:
            return
        head = answer_head(status, self._headers)
        self._until_end = head.until_end
        self._reusable = not head.until_end and self._parser.should_keep_alive()
        learn_answer(self._unparsed_head, head, reusable=self._reusable)
        self._sink.on_head(head)

    def on_chunk_header(self) -> None:
        self.between_chunks = False

    def on_chunk_complete(self) -> None:
        self.between_chunks = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._complete = not self._interim

    def _deliver(self, sink: ResponseSink, body: bytes) -> None:
        if self._complete:
            self._release()
        sink.on_block(body, last=self._complete)

    def _release(self) -> None:
        self._sink = self.write = None
        self.used = True
        self._unparsed_head = b""
        if self._reusable and self.usable and not self._transport.get_write_buffer_size():
            self._transport.resume_reading()
            self._upstream.keep(self)
        else:
            self.close()

    def _lose(self, detail: str) -> None:
        sink = self._sink
        self.abort()
        self._pieces.clear()
        if sink is not None:
            sink.on_lost(detail)


def request_end(request_id: str, body_bytes: int) -> bytes:
    """The end of a request's head: what is of this request alone."""
    return b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (request_id.encode(), body_bytes)


def _split(url: str) -> tuple[str, int, str, str]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None or parts.query or parts.username:
        raise UserInputError(f"endpoint address {url!r} is not http://HOST:PORT", hint="give the engine's own address")
    return parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"), parts.netloc
