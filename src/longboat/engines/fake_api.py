"""The fake engine's OpenAI API: requests become jobs, tokens become JSON answers and server-sent events."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from longboat.engines.fake_engine import FakeEngine
from longboat.engines.fake_faults import FaultError, fault_from
from longboat.engines.fake_http import Exchange
from longboat.engines.fake_requests import Choice, RefusedError, Request, decoded, request_from

__all__ = ("Api",)

Update = tuple[Choice, str, tuple[int, ...]]
"""A choice, the text that may go out for it now, and the tokens that brought it."""


class Api:
    """Answers HTTP exchanges from one engine. ``key``: what ``/v1`` paths must show; empty: nothing."""

    def __init__(self, engine: FakeEngine, key: str = "", kv_sources: Mapping[str, object] | None = None) -> None:
        self._engine = engine
        self._key = key
        self._kv_sources = dict(kv_sources or {})
        self._routes: dict[tuple[str, str], Callable[[Exchange], None]] = {
            ("GET", "/health"): lambda exchange: exchange.answer(200, b""),
            ("GET", "/ping"): lambda exchange: exchange.answer(200, b""),
            ("GET", "/version"): lambda exchange: exchange.answer(200, b'{"version":"longboat-fake"}'),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("GET", "/kv_event_sources"): lambda exchange: exchange.answer(200, orjson.dumps(self._kv_sources)),
            ("POST", "/fault"): self._fault,
        }

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request; never raises but for cancellation and a broken stream."""
        try:
            await self._handle(exchange)
        except RefusedError as refusal:
            exchange.answer(refusal.status, _error(refusal.status, str(refusal)))
        except FaultError as bad:
            exchange.answer(400, _error(400, str(bad)))

    async def _handle(self, exchange: Exchange) -> None:
        if exchange.path.startswith("/v1/") and self._key:
            shown = exchange.headers.get("authorization", "")
            if not hmac.compare_digest(shown.encode(), f"Bearer {self._key}".encode()):
                raise RefusedError(401, "Unauthorized")
        if exchange.method == "POST" and exchange.path in ("/v1/chat/completions", "/v1/completions"):
            return await self._complete(exchange)
        route = self._routes.get((exchange.method, exchange.path))
        if route is None:
            known = {path for _method, path in self._routes} | {"/v1/chat/completions", "/v1/completions"}
            raise RefusedError(405 if exchange.path in known else 404, f"no {exchange.method} {exchange.path} here")
        route(exchange)

    def _metrics(self, exchange: Exchange) -> None:
        exchange.answer(200, self._engine.metrics_text().encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _models(self, exchange: Exchange) -> None:
        settings = self._engine.settings
        card = {"id": settings.model, "object": "model", "created": 1, "owned_by": "longboat", "root": settings.model}
        answer = {"object": "list", "data": [{**card, "parent": None, "max_model_len": settings.context_tokens}]}
        exchange.answer(200, orjson.dumps(answer))

    def _fault(self, exchange: Exchange) -> None:
        fault = fault_from(decoded(exchange.body))
        exchange.answer(200, b'{"armed":true}')
        asyncio.get_running_loop().call_later(0.02, self._engine.arm, fault)  # the answer leaves before we die

    async def _complete(self, exchange: Exchange) -> None:
        is_chat = exchange.path == "/v1/chat/completions"
        request = request_from(self._engine.settings.model, is_chat, exchange.headers, exchange.body)
        for choice in request.choices:
            if reason := self._engine.too_long(choice.job):
                raise RefusedError(400, reason)
        if request.is_streamed:
            await self._stream(exchange, request)
        else:
            async with aclosing(self._updates(request.choices)) as updates:
                async for _update in updates:
                    pass
            exchange.answer(200, orjson.dumps(_whole(request, self._engine.settings.model)))

    async def _stream(self, exchange: Exchange, request: Request) -> None:
        model = self._engine.settings.model
        exchange.start_stream()
        opened: set[int] = set()
        async with aclosing(self._updates(request.choices)) as updates:
            async for choice, text, batch in updates:
                data = b""
                if request.is_chat and choice.index not in opened:
                    data = _event(request, model, [_opening(choice)])
                    opened.add(choice.index)
                await exchange.send(data + _event(request, model, [_delta(request, choice, text, batch)]))
        tail = b"data: [DONE]\n\n"
        if request.includes_usage:
            tail = _event(request, model, [], usage=_usage(request)) + tail
        await exchange.send(tail)
        exchange.end_stream()

    async def _updates(self, choices: tuple[Choice, ...]) -> AsyncGenerator[Update, None]:
        """What comes out of all choices, in the order of its making."""
        if len(choices) == 1:
            async with aclosing(self._updates_of(choices[0])) as updates:
                async for update in updates:
                    yield update
            return
        queue: asyncio.Queue[Update] = asyncio.Queue(maxsize=64)
        tasks = [asyncio.create_task(self._feed(choice, queue)) for choice in choices]
        everything = asyncio.gather(*tasks)
        try:
            while not (everything.done() and queue.empty()):
                getting = asyncio.ensure_future(queue.get())
                waited: set[asyncio.Future[Any]] = {getting, everything}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    yield getting.result()
                else:
                    getting.cancel()
            await everything
        finally:
            everything.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self, choice: Choice, queue: asyncio.Queue[Update]) -> None:
        async with aclosing(self._updates_of(choice)) as updates:
            async for update in updates:
                await queue.put(update)

    async def _updates_of(self, choice: Choice) -> AsyncGenerator[Update, None]:
        async with aclosing(self._engine.generate(choice.job, lambda: choice.is_stopped)) as batches:
            async for batch in batches:
                yield choice, choice.take(batch), batch


def _error(status: int, message: str) -> bytes:
    kind = {401: "AuthenticationError", 404: "NotFoundError"}.get(status, "BadRequestError")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})


def _usage(request: Request) -> dict[str, int]:
    generated = sum(choice.num_tokens for choice in request.choices)
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + generated,
        "completion_tokens": generated,
    }


def _envelope(request: Request, model: str, kind: str, choices: list[dict[str, object]]) -> dict[str, object]:
    return {
        "id": request.request_id,
        "object": kind,
        "created": request.created,
        "model": model,
        "choices": choices,
    }


def _event(
    request: Request, model: str, choices: list[dict[str, object]], usage: Mapping[str, int] | None = None
) -> bytes:
    kind = "chat.completion.chunk" if request.is_chat else "text_completion"
    payload = _envelope(request, model, kind, choices)
    if usage is not None:
        payload["usage"] = usage
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _opening(choice: Choice) -> dict[str, object]:
    delta = {"role": "assistant", "content": ""}
    return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}


def _delta(request: Request, choice: Choice, text: str, batch: Sequence[int]) -> dict[str, object]:
    words: dict[str, object] = {"delta": {"content": text}} if request.is_chat else {"text": text}
    ids: dict[str, object] = {"token_ids": list(batch)} if request.returns_token_ids else {}
    return {
        "index": choice.index,
        **words,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stops.matched,
        **ids,
    }


def _whole(request: Request, model: str) -> dict[str, object]:
    answers = []
    for choice in request.choices:
        message: dict[str, object] = {"role": "assistant", "content": choice.text, "refusal": None, "tool_calls": []}
        words: dict[str, object] = {"message": message} if request.is_chat else {"text": choice.text}
        ids: dict[str, object] = {"token_ids": choice.token_ids} if request.returns_token_ids else {}
        end = {"logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stops.matched}
        answers.append({"index": choice.index, **words, **end, **ids})
    kind = "chat.completion" if request.is_chat else "text_completion"
    return {**_envelope(request, model, kind, answers), "usage": _usage(request)}
