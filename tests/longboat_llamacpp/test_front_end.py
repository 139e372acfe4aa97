"""What the HTTP server in front of llama.cpp lets through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from longboat_llamacpp.front_end import FrontEnd

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
        front = FrontEnd(url, "inner", KEY, lambda: None)
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
