"""Whole HTTP/1.1 messages: reading one request or response from a stream, and sending one request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import httptools

__all__ = ("Message", "ask", "read_request")

MAX_BYTES = 4 * 1024 * 1024

_BLOCK_BYTES = 64 * 1024


class Message:
    """A request or response, filled by its parser. Names of headers are in lower case."""

    def __init__(self, max_bytes: int) -> None:
        self.method = ""
        self.target = ""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.has_head = False
        self.is_complete = False
        self._pieces: list[bytes] = []
        self._room: Final = max_bytes

    async def read(
        self,
        reader: asyncio.StreamReader,
        parser: httptools.HttpRequestParser | httptools.HttpResponseParser,
        *,
        head_only: bool = False,
    ) -> None:
        """Read to the message's end, or to that of its head.

        :raises ValueError: it is not HTTP, or too long; ConnectionError: the other side closed too soon
        """
        num_bytes = 0
        try:
            while not (self.is_complete or (head_only and self.has_head)):
                data = await reader.read(_BLOCK_BYTES)
                num_bytes += len(data)
                if num_bytes > self._room:
                    raise ValueError(f"it sends more than {self._room} bytes")
                if not data:
                    if self.has_head and not self.headers.keys() & {"content-length", "transfer-encoding"}:
                        break  # the end of the connection is the end of the body
                    raise ConnectionResetError("it closed the connection")
                parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise ValueError("it does not speak HTTP") from None
        self.body = b"".join(self._pieces)
        self.method = parser.get_method().decode() if isinstance(parser, httptools.HttpRequestParser) else ""
        self.status = 0 if isinstance(parser, httptools.HttpRequestParser) else parser.get_status_code()

    # called by the parser

    def on_url(self, url: bytes) -> None:
        self.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


async def read_request(reader: asyncio.StreamReader, *, max_bytes: int) -> Message:
    """Read one request. :raises ValueError, ConnectionError: see ``Message.read``"""
    message = Message(max_bytes)
    await message.read(reader, httptools.HttpRequestParser(message))
    return message


async def ask(
    url: str,
    path: str,
    *,
    timeout_s: float,
    api_key: str = "",
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: bytes = b"",
    socket_path: str | None = None,
    max_bytes: int = MAX_BYTES,
    head_only: bool = False,
) -> Message:
    """Send one request for ``path`` below ``url`` (``http://HOST:PORT``) on a new connection, and return the response.

    socket_path: the Unix socket over which to send it, instead of to the URL's host
    head_only: return when the response's head is complete
    :raises TimeoutError: the response was not complete in ``timeout_s``; OSError: no connection, or it broke
    :raises ValueError: the response is not HTTP, or longer than ``max_bytes``
    """
    parts = urlsplit(url)
    fields = {"host": parts.netloc, "connection": "close", **(headers or {})}
    if api_key:
        fields["authorization"] = f"Bearer {api_key}"
    if body or method != "GET":
        fields["content-length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head = f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1\r\n{lines}\r\n"
    async with asyncio.timeout(timeout_s):
        if socket_path is None:
            opening = asyncio.open_connection(parts.hostname or "", parts.port or 80)
        else:
            opening = asyncio.open_unix_connection(socket_path)
        reader, writer = await opening
        try:
            writer.write(head.encode("latin-1") + body)
            message = Message(max_bytes)
            await message.read(reader, httptools.HttpResponseParser(message), head_only=head_only)
            return message
        finally:
            writer.transport.abort()
