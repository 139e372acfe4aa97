"""The fake engine's Responses API: items, streamed as typed events and kept in memory for later requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from longboat_fake.api.generation import check_room, run_to_end
from longboat_fake.api.requests import (
    Choice,
    RefusedError,
    Request,
    chat_prompt,
    checked_model,
    decoded,
    request_of,
)
from longboat_fake.api.response_events import ResponseEvents
from longboat_fake.api.response_items import response_document, response_items
from longboat_fake.api.stream import stream_updates
from longboat_fake.engine.generator import FakeEngine
from longboat_fake.http.server import Exchange

__all__ = ("Responses",)

_MAX_KEPT = 1024


@dataclass(slots=True)
class _Kept:
    """One response and its conversation."""

    messages: list[dict[str, Any]]  # the request's conversation, as chat messages
    document: dict[str, Any]  # the response so far
    task: asyncio.Task[None] | None = field(default=None)


class Responses:
    """The paths ``/v1/responses`` and below, with the last 1,024 responses."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def create(self, exchange: Exchange) -> None:
        """Answer ``POST /v1/responses``. Raises RefusedError, FaultError."""
        body = checked_model(exchange.terms.name_of(self._engine.settings.model), decoded(exchange.body))
        messages = [*self._before(body.get("previous_response_id")), *_messages(body.get("input"))]
        request = request_of(True, exchange.headers, _as_chat(body, messages), exchange.terms)
        check_room(self._engine, request.choices[0].job)
        request_id = f"resp_{request.request_id.removeprefix('chatcmpl-')}"
        kept = _Kept(
            messages, response_document(request_id, body, request, exchange.terms.name_of(self._engine.settings.model))
        )
        if body.get("store", True):
            self._keep(request_id, kept)
        if body.get("background"):
            self._run_behind(exchange, kept, request)
        elif request.is_streamed:
            await self._stream(exchange, kept, request)
        else:
            await self._run(kept, request)
            exchange.answer(200, orjson.dumps(kept.document))

    def count_input(self, exchange: Exchange) -> None:
        """Answer ``POST /v1/responses/input_tokens``. Raises RefusedError."""
        body = checked_model(exchange.terms.name_of(self._engine.settings.model), decoded(exchange.body))
        messages = [*self._before(body.get("previous_response_id")), *_messages(body.get("input"))]
        count = len(chat_prompt(_as_chat(body, messages)))
        exchange.answer(200, orjson.dumps({"object": "response.input_tokens", "input_tokens": count}))

    def retrieve(self, exchange: Exchange) -> None:
        """Answer ``GET /v1/responses/ID``. Raises RefusedError."""
        exchange.answer(200, orjson.dumps(self._of(exchange.path.split("/")[3]).document))

    def cancel(self, exchange: Exchange) -> None:
        """Answer ``POST /v1/responses/ID/cancel``. Raises RefusedError."""
        kept = self._of(exchange.path.split("/")[3])
        if kept.document["status"] not in ("queued", "in_progress"):
            raise RefusedError(400, "Cannot cancel a synchronous response.", "response_id")
        kept.document["status"] = "cancelled"
        if kept.task is not None:
            kept.task.cancel()
        exchange.answer(200, orjson.dumps(kept.document))

    def _of(self, response_id: str) -> _Kept:
        try:
            return self._kept[response_id]
        except KeyError:
            raise RefusedError(404, f"Response with id '{response_id}' not found.", "response_id") from None

    def _before(self, response_id: object) -> list[dict[str, Any]]:
        """Return the conversation up to and including that response."""
        if response_id is None:
            return []
        kept = self._of(str(response_id))
        texts = [
            {"role": "assistant", "content": item["content"]}
            for item in kept.document["output"]
            if item["type"] == "message"
        ]
        return [*kept.messages, *texts]

    def _keep(self, response_id: str, kept: _Kept) -> None:
        self._kept[response_id] = kept
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)

    def _run_behind(self, exchange: Exchange, kept: _Kept, request: Request) -> None:
        kept.document["status"] = "queued"
        kept.document["background"] = True
        exchange.answer(200, orjson.dumps(kept.document))
        kept.task = asyncio.get_running_loop().create_task(self._run(kept, request))

    async def _run(self, kept: _Kept, request: Request) -> None:
        kept.document["status"] = "in_progress"
        await run_to_end(self._engine, request.choices)
        _complete(kept, request)

    async def _stream(self, exchange: Exchange, kept: _Kept, request: Request) -> None:
        writer = ResponseEvents(request.choices[0])

        def end() -> Iterator[bytes]:
            _complete(kept, request)
            return writer.end(kept.document)

        start = writer.start(kept.document)
        await stream_updates(self._engine, exchange, request.choices, writer.of, end, start=start)


def _complete(kept: _Kept, request: Request) -> None:
    choice = request.choices[0]
    is_cut = choice.finish_reason == "length"
    kept.document |= {
        "output": response_items(choice),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "usage": _usage(request, choice),
    }


def _usage(request: Request, choice: Choice) -> dict[str, Any]:
    per_turn: list[int] = []
    read = {"cached_tokens": 0, "cache_write_tokens": 0}
    return {
        "input_tokens": request.prompt_tokens,
        "input_tokens_details": {**read, "input_tokens_per_turn": per_turn, "cached_tokens_per_turn": per_turn},
        "output_tokens": choice.num_tokens,
        "output_tokens_details": {
            "reasoning_tokens": min(choice.num_tokens, choice.job.num_reasoning),
            "tool_output_tokens": 0,
        },
        "total_tokens": request.prompt_tokens + choice.num_tokens,
    }


def _messages(value: object) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, list) and all(isinstance(item, dict) for item in value) and value:
        return [_message(item) for item in value]
    raise RefusedError(400, "input must be a text or a list of items", "input")


def _message(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call":
        return {"role": "assistant", "content": f"{item.get('name')} {item.get('arguments')}"}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return {"role": item.get("role", "user"), "content": item.get("content")}


def _as_chat(body: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Translate the request into chat completions."""
    system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    chat: dict[str, Any] = {
        name: body[name] for name in ("stream", "temperature", "seed", "longboat_fault", "tools") if name in body
    }
    chat |= {"messages": [*system, *messages], "max_tokens": body.get("max_output_tokens")}
    chat["tool_choice"] = body.get("tool_choice", "auto")
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict):
        chat["reasoning_effort"] = reasoning.get("effort")
    text = body.get("text")
    asked = text.get("format") if isinstance(text, dict) else None
    if isinstance(asked, dict):
        chat["response_format"] = {"type": asked.get("type"), "json_schema": asked}
    return chat
