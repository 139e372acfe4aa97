"""What the HTTP server in front of llama.cpp lets through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from longboat_llamacpp.front_end import FrontEnd
from longboat_llamacpp.request_errors import error_of_request

KEY = "s3cret"
DEADLINE = aiohttp.ClientTimeout(total=30)


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def in_front_of(bodies: list[bytes]) -> AsyncIterator[str]:
    """Serve a front end in front of a server that keeps the bodies of its requests."""

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.Response(text="ok")

    inner = web.Application()
    inner.router.add_route("*", "/{path:.*}", answer)
    async with served(inner) as url:
        front = FrontEnd(url, "inner", KEY)
        async with served(front.application()) as address:
            yield address


async def test_what_comes_without_a_key_is_answered_before_its_body_is_there() -> None:
    sends, bodies = asyncio.Event(), list[bytes]()

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        await sends.wait()

    async with in_front_of(bodies) as url, aiohttp.ClientSession(timeout=DEADLINE) as client:
        async with client.post(f"{url}/metrics", data=body()) as answer:
            assert (answer.status, bodies) == (200, [b""])
        async with client.post(f"{url}/v1/completions", data=body()) as answer:
            assert (answer.status, bodies) == (401, [b""])
        headers = {"authorization": f"Bearer {KEY}"}
        async with client.post(f"{url}/v1/completions", data=b"{}", headers=headers) as answer:
            assert (answer.status, bodies) == (200, [b"", b"{}"])


def failure(message: object) -> bytes:
    return json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}}).encode()


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("image input is not supported - hint: you may need to provide the mmproj", None),
        ("audio input is not supported - hint: you may need to provide the mmproj", None),
        ('Failed to parse tools: Unsupported tool type: "custom"; tools = [\n {}]', 'Unsupported tool type: "custom"'),
        ("Failed to parse messages: Missing 'role'; messages = [\n {}]", "Missing 'role'"),
    ],
)
async def test_a_request_that_llama_cpp_cannot_take_is_a_bad_request(message: str, told: str | None) -> None:
    """SDKs send a request again after a 500."""
    async with answered(500, failure(message)) as (status, body):
        error = json.loads(body)["error"]
    assert (status, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert error["message"].endswith(told or message)


@pytest.mark.parametrize("body", [failure("Failed to sample"), failure(None), b"gone", b"[]", b'{"error": "x"}'])
async def test_a_failure_of_llama_cpp_stays_one(body: bytes) -> None:
    assert error_of_request(body) is None
    async with answered(500, body) as given:
        assert given == (500, body)


@asynccontextmanager
async def answered(status: int, body: bytes) -> AsyncIterator[tuple[int, bytes]]:
    """Return status and body of what a front end makes of an answer of llama.cpp."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type="application/json")

    inner = web.Application()
    inner.router.add_route("*", "/{path:.*}", answer)
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        served(inner) as url,
        served(FrontEnd(url, "inner", KEY).application()) as address,
        aiohttp.ClientSession(timeout=DEADLINE) as client,
        client.post(f"{address}/v1/chat/completions", data=b"{}", headers=headers) as given,
    ):
        yield given.status, await given.read()
