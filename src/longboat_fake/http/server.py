"""A small HTTP/1.1 server for the fake engine: one request at a time per connection, responses whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus

import httptools

from longboat_fake.engine.faults import StreamBroken
from longboat_fake.http.carry import Terms

__all__ = ("Exchange", "Handler", "serve")

_MAX_BODY_BYTES = 64 << 20


@dataclass(slots=True)
class Exchange:
    """One request and the way to answer it."""

    connection: _Connection
    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_streaming: bool = False
    is_telling: bool = False  # tokens of a non-streaming response are being sent ahead of it
    terms: Terms = field(default_factory=Terms)  # what the gateway asks beside the client's request

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole response; it follows the tokens that it consists of, where these were sent first."""
        if self.is_telling:
            self.send_now(b"event: %d\ndata: %b\n\n" % (status, body))
            self.end_stream()
            return
        self.connection.write(_head(status, content_type, b"content-length: %d" % len(body)) + body)

    def tell(self, choice: int, ids: Iterable[int]) -> None:
        """Send tokens of a non-streaming response, where the gateway asks for them."""
        if not self.terms.tells_whole:
            return
        if not self.is_telling:
            self.start_stream(b"x-longboat-journal: 1\r\n")
            self.is_telling = True
        self.send_now(b": ids %d %b\n\n" % (choice, ",".join(map(str, ids)).encode()))

    def start_stream(self, headers: bytes = b"", content_type: str = "text/event-stream; charset=utf-8") -> None:
        """Send the head of a stream. ``headers``: further lines of the head, each ended by CRLF."""
        self.is_streaming = True
        framing = headers + b"transfer-encoding: chunked"
        self.connection.write(_head(200, content_type, framing))

    async def send(self, data: bytes) -> None:
        """Send one piece of a stream; wait while the client does not read."""
        self.send_now(data)
        await self.connection.writable.wait()

    def send_now(self, data: bytes) -> None:
        """Send one piece of a stream, whether or not the client reads."""
        self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.connection.write(b"0\r\n\r\n")


Handler = Callable[[Exchange], Awaitable[None]]


def _head(status: int, content_type: str, framing: bytes) -> bytes:
    phrase = HTTPStatus(status).phrase
    start = f"HTTP/1.1 {status} {phrase}\r\nserver: longboat-fake\r\ncontent-type: {content_type}\r\n"
    return start.encode() + framing + b"\r\n\r\n"


class _Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._parser = httptools.HttpRequestParser(self)
        self._queue: list[Exchange] = []
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._current = Exchange(self)
        self.writable = asyncio.Event()
        self.writable.set()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not subclasses

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            self.write(_head(400, "text/plain", b"content-length: 0\r\nconnection: close"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._queue.clear()
        self.writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._current = Exchange(self)

    def on_url(self, url: bytes) -> None:
        self._current.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._current.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._current.body += body
        if len(self._current.body) > _MAX_BODY_BYTES:
            self.write(_head(413, "text/plain", b"content-length: 0\r\nconnection: close"))
            self.close()

    def on_message_complete(self) -> None:
        self._current.method = self._parser.get_method().decode()
        self._queue.append(self._current)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._queue:
                exchange = self._queue.pop(0)
                await self._handler(exchange)
                if exchange.headers.get("connection", "").lower() == "close":
                    self.close()
        except StreamBroken as broken:
            self.write(broken.last_words(exchange.path) if exchange.is_streaming else b"")
            self.close()
        finally:
            self._task = None

    def close(self) -> None:
        """Close after everything written has been sent."""
        if self._transport is not None:
            self._transport.close()


async def serve(handler: Handler, host: str, port: int) -> asyncio.Server:
    """Listen at ``host`` and ``port``. Raises OSError where the address is taken or not local."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: _Connection(handler), host, port, backlog=1024)
