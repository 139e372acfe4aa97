"""Whether an engine is there, asked over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from longboat.gateway.upstreams.health import LateError, is_there

TIMEOUT_S = 20.0
Answering = Callable[[bytes], Awaitable[str]]


@pytest.fixture
async def asked() -> list[bytes]:
    return []


@pytest.fixture
async def answering(asked: list[bytes]) -> AsyncIterator[Answering]:
    """Makes an engine that answers every request with these bytes, and closes."""
    servers: list[asyncio.Server] = []

    async def make(answer: bytes) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield make
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", ""),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "status 503"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it does not speak HTTP"),
        (b"", "it closed the connection"),
    ],
)
async def test_answer_tells_whether_it_is_there(answer: bytes, problem: str, answering: Answering) -> None:
    url = await answering(answer)
    assert await is_there(url, "/health", timeout_s=TIMEOUT_S) == problem


async def test_endless_line_is_no_http(answering: Answering) -> None:
    url = await answering(b"x" * 100_000)
    assert await is_there(url, "/health", timeout_s=TIMEOUT_S) == "it does not speak HTTP"


async def test_question_has_the_path_and_the_engines_key(answering: Answering, asked: list[bytes]) -> None:
    url = await answering(b"HTTP/1.1 200 OK\r\n\r\n")
    await is_there(f"{url}/base/", "/ping", api_key="secret", timeout_s=TIMEOUT_S)
    assert asked[0].startswith(b"GET /base/ping HTTP/1.1\r\n")
    assert b"authorization: Bearer secret\r\n" in asked[0]


async def test_closed_port_is_a_refused_connection() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert await is_there(f"http://127.0.0.1:{port}", "/health", timeout_s=TIMEOUT_S) == "connection refused"


async def test_silence_is_told_apart_from_absence() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(LateError):
            await is_there(f"http://127.0.0.1:{silent.getsockname()[1]}", "/health", timeout_s=0.1)
