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
from longboat.routing.breaker import Breaker
from longboat.routing.poison import Admitted
from longboat.routing.watchdog import Pace

__all__ = ("MovableStream", "ResponseSink", "Upstream", "UpstreamConnection")


# A host that vanished without a word is noticed in about 11 s, though nothing is being sent to it.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
)


_SIZES = {b"%x\r\n" % size: size for size in range(1, 16384)}
_EVENT_END = b"\n\n\r\n"
_CHOICES_END = b"}]}\n\n\r\n"


class ResponseSink(Protocol):
    """Who wants a response: told of its head, its body block by block, and its end."""

    def on_head(self, head: AnswerHead) -> None:
        """The answer begins. Raises nothing."""

    def on_block(self, body: bytes, *, last: bool) -> None:
        """Everything that arrived together. ``last``: the response is complete and the connection is free again."""

    def on_whole_chunk(self, chunk: bytes, body_bytes: int) -> None:
        """Only while the connection's ``direct`` is set: one chunk of whole events, framing and all, as it arrived."""

    def on_lost(self, detail: str) -> None:
        """The connection ended, or spoke nonsense, before the response was complete."""


class MovableStream(Protocol):
    """An answer that can go on elsewhere."""

    def replica_lost(self, reason: str) -> None:
        """The engine that gives it is held for lost, though its connection may still be there."""

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

    def request_head(
        self, method: str, path: bytes, forwarded: list[bytes], request_id: str, body_bytes: int, extra: bytes = b""
    ) -> bytes:
        """The head of a request to this engine, ours in place of the client's where the two differ."""
        own = b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (request_id.encode(), body_bytes)
        first = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self._base_path, path)
        return b"".join((first, self._own_lines, *forwarded, extra, own))

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

    def mark_lost(self, reason: str) -> None:
        """Nothing is sent there any more, and what runs there goes elsewhere."""
        self.lost, self.ready = reason, False
        self.close_idle(float("inf"))
        self.move_streams(reason)

    def move_streams(self, reason: str) -> None:
        """What runs there goes elsewhere."""
        for stream in tuple(self.streams):
            stream.replica_lost(reason)

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


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine. Carries one request at a time; hands on each block of body as it arrives."""

    __slots__ = (
        "_between_chunks",
        "_complete",
        "_headers",
        "_interim",
        "_parser",
        "_pieces",
        "_reusable",
        "_sink",
        "_transport",
        "_until_end",
        "_upstream",
        "direct",
        "quiet",
        "used",
    )

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: Any = None
        self._parser: Any = None
        self._sink: ResponseSink | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._complete = False
        self._interim = False
        self._until_end = False
        self._reusable = False
        self._between_chunks = False
        self.direct = False  # set by the sink, see ResponseSink.on_whole_chunk
        self.quiet = 0  # sweeps since the last byte
        self.used = False  # has carried a complete response

    # what the exchange calls

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, sink: ResponseSink, head: bytes, body: bytes) -> None:
        """Send one request; its response goes to ``sink``."""
        self._sink = sink
        self._complete = self._interim = self._until_end = self._between_chunks = self.direct = False
        self.quiet = 0
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
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self._sink = None
        if self._transport is not None:
            self._transport.close()

    # what the loop calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        sock = transport.get_extra_info("socket")
        for level, option, value in _SOCKET_OPTIONS:
            sock.setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:  # an idle engine has nothing to say: what follows could not be told from an answer
            self.abort()
            return
        self.quiet = 0
        if self.direct and self._between_chunks and (size := _size_of_whole_chunk(data)):
            # The common case: the parser is between two chunks before this one and after it, so it need not see it.
            sink.on_whole_chunk(data, size)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, AnswerHeadError):
                raise  # a defect of ours: the loop reports it and closes the connection
            self._lose(f"its answer is not HTTP: {cause or error}")
            return
        pieces = self._pieces
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._deliver(sink, body)
        elif self._complete:
            self._deliver(sink, b"")

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

    # what the parser calls

    def on_message_begin(self) -> None:
        if self._complete:
            raise AnswerHeadError("a second answer to one request")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim or self._sink is None:
            return
        head = answer_head(status, self._headers)
        self._until_end = head.until_end
        self._reusable = not head.until_end and self._parser.should_keep_alive()
        self._sink.on_head(head)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._complete = not self._interim

    def _deliver(self, sink: ResponseSink, body: bytes) -> None:
        if self._complete:
            self._release()
        sink.on_block(body, last=self._complete)

    def _release(self) -> None:
        self._sink = None
        self.used = True
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


def _size_of_whole_chunk(data: bytes) -> int:
    """Body bytes of the one chunk that ``data`` is, if it is one of whole events without usage; else 0.

    An event that ends with the list of choices (as vLLM's do) is known at a glance to hold no usage after it.
    """
    at = 3 if data[3:4] == b"\r" else data.find(b"\r", 0, 6)
    size = _SIZES.get(data[: at + 2])
    if size is None or len(data) != at + size + 4:
        return 0
    if data.endswith(_CHOICES_END) or (data.endswith(_EVENT_END) and b'"usage"' not in data):
        return size
    return 0


def _split(url: str) -> tuple[str, int, str, str]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None or parts.query or parts.username:
        raise UserInputError(f"endpoint address {url!r} is not http://HOST:PORT", hint="give the engine's own address")
    return parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"), parts.netloc
