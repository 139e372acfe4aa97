"""The fake engine's Anthropic API: messages become chats, and their answers Anthropic's blocks and events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import orjson

from longboat.engines.fake_engine import FakeEngine
from longboat.engines.fake_generation import check_room, run_to_end, updates_of
from longboat.engines.fake_http import Exchange
from longboat.engines.fake_requests import (
    Choice,
    RefusedError,
    Request,
    chat_prompt,
    checked_model,
    decoded,
    request_of,
    text_of,
)

__all__ = ("answer_messages", "anthropic_error", "count_tokens")


async def answer_messages(engine: FakeEngine, exchange: Exchange) -> None:
    """Answer ``POST /v1/messages``. Raises RefusedError, FaultError."""
    body = checked_model(engine.settings.model, decoded(exchange.body))
    if not isinstance(body.get("max_tokens"), int):
        raise RefusedError(400, "max_tokens is a whole number, 1 or more", "max_tokens")
    request = request_of(True, exchange.headers, _as_chat(body), exchange.terms)
    choice = request.choices[0]
    check_room(engine, choice.job)
    if request.is_streamed:
        await _stream(engine, exchange, request, choice)
        return
    await run_to_end(engine, request.choices)
    exchange.answer(200, orjson.dumps(_whole(engine.settings.model, request, choice)))


def count_tokens(engine: FakeEngine, exchange: Exchange) -> None:
    """Answer ``POST /v1/messages/count_tokens``. Raises RefusedError."""
    body = checked_model(engine.settings.model, decoded(exchange.body))
    count = len(chat_prompt(_as_chat(body)))
    document = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
    exchange.answer(200, orjson.dumps(document))


def anthropic_error(status: int, kind: str, message: str) -> bytes:
    """An error as Anthropic's clients read it."""
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def _as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The same request in OpenAI's words."""
    system = [{"role": "system", "content": text_of(body["system"])}] if body.get("system") else []
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages is a list with at least one message", "messages")
    chat: dict[str, Any] = {
        name: body[name] for name in ("max_tokens", "stream", "temperature", "longboat_fault") if name in body
    }
    chat |= {"messages": [*system, *messages], "stop": body.get("stop_sequences") or []}
    chat["tools"] = [
        {"type": "function", "function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in body.get("tools") or ()
        if isinstance(tool, dict)
    ]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = {"any": "required", "tool": named}.get(str(choice.get("type")), choice.get("type"))
    return chat


def _usage(request: Request, choice: Choice | None) -> dict[str, int]:
    return {"input_tokens": request.prompt_tokens, "output_tokens": choice.num_tokens if choice else 0}


def _stop(choice: Choice) -> dict[str, str | None]:
    if choice.stops.matched is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stops.matched}
    if choice.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "tool_use" if choice.tool else "end_turn", "stop_sequence": None}


def _whole(model: str, request: Request, choice: Choice) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": choice.text}
    if choice.tool:
        block = {"type": "tool_use", "id": choice.call_id, "name": choice.tool, "input": _arguments(choice.text)}
    return {**_envelope(model, request), "content": [block], **_stop(choice), "usage": _usage(request, choice)}


def _arguments(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # the answer was cut
        return {}


def _envelope(model: str, request: Request) -> dict[str, Any]:
    return {"id": request.request_id, "type": "message", "role": "assistant", "content": [], "model": model}


async def _stream(engine: FakeEngine, exchange: Exchange, request: Request, choice: Choice) -> None:
    exchange.start_stream()
    data = b"".join(_openings(engine.settings.model, request, choice))
    async with aclosing(updates_of(engine, request.choices)) as updates:
        async for update in updates:
            text = update.text
            await exchange.send(data + (_delta(choice, text) if text else b"") or b": \n\n")
            data = b""
    await exchange.send(data + b"".join(_endings(request, choice)))
    exchange.end_stream()


def _openings(model: str, request: Request, choice: Choice) -> Iterator[bytes]:
    message = {**_envelope(model, request), "stop_reason": None, "stop_sequence": None}
    yield _event("message_start", message={**message, "usage": _usage(request, None)})
    block: dict[str, Any] = {"type": "text", "text": ""}
    if choice.tool:
        block = {"type": "tool_use", "id": choice.call_id, "name": choice.tool, "input": {}}
    yield _event("content_block_start", content_block=block, index=0)


def _delta(choice: Choice, text: str) -> bytes:
    delta = {"type": "text_delta", "text": text}
    if choice.tool:
        delta = {"type": "input_json_delta", "partial_json": text}
    return _event("content_block_delta", delta=delta, index=0)


def _endings(request: Request, choice: Choice) -> Iterator[bytes]:
    yield _event("content_block_stop", index=0)
    yield _event("message_delta", delta=_stop(choice), usage=_usage(request, choice))
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
