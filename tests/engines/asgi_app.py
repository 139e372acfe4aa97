"""Builders for tests of the middleware: an application behind it, and calls through both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from longboat_vllm.middleware import ResumeMiddleware
from longboat_vllm.resume.carry import CURRENT, CarriedRequest
from longboat_vllm.resume.install import ResumeState

__all__ = ("KEY", "Call", "Recorder", "installed", "middleware_of", "post")

KEY = "s3cret"
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def installed() -> ResumeState:
    return ResumeState(journal_problem="", carried_problem="", replay_problem="", engine="vllm 0.32.0")


@dataclass
class Recorder:
    """An application that keeps what reached it, and sends ``pieces`` as an event stream."""

    pieces: list[tuple[dict[int, list[int]], bytes]] = field(default_factory=list)
    num_choices: int = 1
    pause: Callable[[], Awaitable[None]] | None = None
    body: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    request: CarriedRequest | None = None
    calls: int = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        self.calls += 1
        self.headers = dict(scope["headers"])
        self.body = (await receive())["body"]
        self.request = CURRENT.get()
        kind = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        if self.pause is not None:
            await self.pause()
        for ids, piece in self.pieces:
            if self.request is not None:
                self.request.num_choices = self.num_choices
                for choice, tokens in ids.items():
                    self.request.note(choice, tokens)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass
class Call:
    """The response to a call. chunks: the parts of the body as they were sent; reads: set once the client reads them"""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    reads: asyncio.Event | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


def middleware_of(
    app: Recorder, *, state: ResumeState | None = None, engine_key: str = KEY, steps_period_s: float = 60.0
) -> ResumeMiddleware:
    environ = {"VLLM_API_KEY": engine_key}
    return ResumeMiddleware(app, state=state or installed(), environ=environ, steps_period_s=steps_period_s)


async def post(
    app: Recorder,
    *pieces: bytes,
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/chat/completions",
    key: str = KEY,
    state: ResumeState | None = None,
    engine_key: str = KEY,
    steps_period_s: float = 60.0,
    middleware: ResumeMiddleware | None = None,
    call: Call | None = None,
) -> Call:
    """Send a request, its body in ``pieces``, through a middleware: a new one unless it is given.

    call: what the response is written into
    """
    call = call or Call()
    middleware = middleware or middleware_of(app, state=state, engine_key=engine_key, steps_period_s=steps_period_s)
    given = {"authorization": f"Bearer {key}", "content-length": str(sum(map(len, pieces))), **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    waiting = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces[:-1]]
    waiting.append({"type": "http.request", "body": pieces[-1] if pieces else b"", "more_body": False})

    async def receive() -> MutableMapping[str, Any]:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            call.status, call.headers = message["status"], dict(message["headers"])
        elif message["body"]:
            if call.reads is not None:
                await call.reads.wait()
            call.chunks.append(message["body"])

    await middleware({"type": "http", "method": "POST", "path": path, "headers": raw}, receive, send)
    return call
