"""An engine made of a script: a raw HTTP server whose answers are bytes that a test wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

DEADLINE_S = 20.0

OK_JSON = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{"answer": 4.2}'
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def event(text: str) -> bytes:
    return f'data: {{"choices": [{{"index": 0, "delta": {{"content": "{text}"}}}}]}}\n\n'.encode()


@dataclass
class Seen:
    """One request as the engine got it, and the means to answer it."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


Script = Callable[[Seen], Awaitable[None]]


async def answer_json(seen: Seen) -> None:
    await seen.send(OK_JSON)


@dataclass
class FakeUpstream:
    """Runs ``script`` for every request. ``ended`` is set when a connection was closed by the other side."""

    script: Script = answer_json
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    has_metrics: bool = False  # the script answers for them, too
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def port(self) -> int:
        assert self.server is not None
        return int(self.server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        for seen in self.seen:
            seen.writer.transport.abort()

    def _is_aside(self, head: bytes) -> bool:
        """Whether the gateway asks for something beside clients' requests, which the script does not want to see."""
        return head.startswith(b"GET /longboat/") or (head.startswith(b"GET /metrics ") and not self.has_metrics)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                seen = Seen(head, b"", reader, writer)
                if self._is_aside(head):
                    self.connections -= 1
                    await seen.send(NOT_FOUND)
                    return
                seen.body = await reader.readexactly(int(seen.header("content-length") or 0))
                self.seen.append(seen)
                self.arrived.set()
                await self.script(seen)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
        finally:
            writer.close()


async def until_closed(seen: Seen) -> None:
    """A script's last line: wait until the gateway closes the connection."""
    if await seen.reader.read(1) == b"":
        raise ConnectionResetError
