"""Whole HTTP messages: however they are framed and cut, and wherever they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from longboat.gateway.http.message import ask

TIMEOUT_S = 20.0
Server = Callable[..., Awaitable[str]]


@pytest.fixture
async def asked() -> list[bytes]:
    return []


@pytest.fixture
async def server(asked: list[bytes], tmp_path: Path) -> AsyncIterator[Server]:
    """Make a server on a Unix socket that sends these pieces, and closes where it is told to."""
    servers: list[asyncio.Server] = []

    async def make(*pieces: bytes, closes: bool = True) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if closes:
                writer.close()

        path = str(tmp_path / f"{len(servers)}.sock")
        servers.append(await asyncio.start_unix_server(serve, path))
        return path

    yield make
    for each in servers:
        each.close()


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 203 Fine\r\ncontent-length: 5\r\n\r\nhe", b"llo"),
        (b"HTTP/1.1 203 Fine\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n", b"3\r\nllo\r\n0\r\n\r\n"),
        (b"HTTP/1.1 203 Fi", b"ne\r\nX-Any: a\r\n\r\nhel", b"lo"),
    ],
    ids=["length", "chunks", "end of the connection"],
)
async def test_body_is_whole_however_it_is_framed(pieces: tuple[bytes, ...], server: Server) -> None:
    answer = await ask("http://any", "/", socket_path=await server(*pieces), timeout_s=TIMEOUT_S)
    assert (answer.status, answer.body) == (203, b"hello")


async def test_request_has_the_path_below_the_url_its_headers_and_its_body(server: Server, asked: list[bytes]) -> None:
    path = await server(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    headers = {"authorization": "Bearer x"}
    await ask(
        "http://h:1/base/", "/v1", socket_path=path, timeout_s=TIMEOUT_S, method="POST", body=b"{}", headers=headers
    )
    assert asked[0].startswith(
        b"POST /base/v1 HTTP/1.1\r\nhost: h:1\r\nconnection: close\r\nauthorization: Bearer x\r\n"
    )
    assert b"\r\ncontent-length: 2\r\n" in asked[0]


async def test_head_is_enough_where_only_that_is_wanted(server: Server) -> None:
    path = await server(b"HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\n", closes=False)
    assert (await ask("http://any", "/", socket_path=path, timeout_s=TIMEOUT_S, head_only=True)).status == 503


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", ConnectionError),
        (b"", ConnectionError),
        (b"+OK redis\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000, ValueError),
    ],
    ids=["cut", "nothing", "another protocol", "too long"],
)
async def test_what_is_no_whole_message_is_an_error(sent: bytes, error: type[Exception], server: Server) -> None:
    path = await server(sent)
    with pytest.raises(error):
        await ask("http://any", "/", socket_path=path, timeout_s=TIMEOUT_S, max_bytes=50_000)


async def test_silence_ends_at_the_deadline(server: Server) -> None:
    path = await server(closes=False)
    with pytest.raises(TimeoutError):
        await ask("http://any", "/", socket_path=path, timeout_s=0.05)
