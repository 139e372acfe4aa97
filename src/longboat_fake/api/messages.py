"""The fake engine's Anthropic API: translates messages to chats, and their choices to blocks and events."""

from __future__ import annotations

from typing import Any

import orjson

from longboat_fake.api.generation import check_room, run_to_end
from longboat_fake.api.message_events import MessageEvents, message_envelope, message_stop, message_usage
from longboat_fake.api.requests import (
    Choice,
    RefusedError,
    Request,
    chat_prompt,
    checked_model,
    decoded,
    request_of,
    text_of,
)
from longboat_fake.api.stream import stream_updates
from longboat_fake.engine.generator import FakeEngine
from longboat_fake.http.server import Exchange

__all__ = ("answer_messages", "anthropic_error", "count_tokens")


async def answer_messages(engine: FakeEngine, exchange: Exchange) -> None:
    """Answer ``POST /v1/messages``. Raises RefusedError, FaultError."""
    body = checked_model(exchange.terms.name_of(engine.settings.model), decoded(exchange.body))
    if not isinstance(body.get("max_tokens"), int):
        raise RefusedError(400, "max_tokens must be a whole number, 1 or more", "max_tokens")
    request = request_of(True, exchange.headers, _as_chat(body), exchange.terms)
    choice = request.choices[0]
    check_room(engine, choice.job)
    if request.is_streamed:
        writer = MessageEvents(exchange.terms.name_of(engine.settings.model), request)
        await stream_updates(engine, exchange, request.choices, writer.of, writer.end)
        return
    await run_to_end(engine, request.choices, exchange)
    exchange.answer(200, orjson.dumps(_whole(exchange.terms.name_of(engine.settings.model), request, choice)))


def count_tokens(engine: FakeEngine, exchange: Exchange) -> None:
    """Answer ``POST /v1/messages/count_tokens``. Raises RefusedError."""
    body = checked_model(exchange.terms.name_of(engine.settings.model), decoded(exchange.body))
    count = len(chat_prompt(_as_chat(body)))
    document = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
    exchange.answer(200, orjson.dumps(document))


def anthropic_error(kind: str, message: str) -> bytes:
    """Write an error as Anthropic's clients read it."""
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def _as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Translate the request into chat completions."""
    system = [{"role": "system", "content": text_of(body["system"])}] if body.get("system") else []
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages must be a list with at least one message", "messages")
    chat: dict[str, Any] = {
        name: body[name] for name in ("max_tokens", "stream", "temperature", "seed", "longboat_fault") if name in body
    }
    chat |= {"messages": [*system, *messages], "stop": body.get("stop_sequences") or []}
    chat["tools"] = [
        {"type": "function", "function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in body.get("tools") or ()
        if isinstance(tool, dict)
    ]
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive"):
        chat["reasoning_effort"] = "medium"
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = {"any": "required", "tool": named}.get(str(choice.get("type")), choice.get("type"))
    return chat


def _whole(model: str, request: Request, choice: Choice) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": choice.text}
    if choice.tool:
        block = {"type": "tool_use", "id": choice.call_id, "name": choice.tool, "input": _arguments(choice.text)}
    thought = {"type": "thinking", "thinking": choice.reasoning, "signature": choice.nonce}
    content = [*([thought] if choice.reasoning else []), block]
    usage = message_usage(request, choice)
    return {**message_envelope(model, request), "content": content, **message_stop(choice), "usage": usage}


def _arguments(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # the limit cut the response
        return {}
