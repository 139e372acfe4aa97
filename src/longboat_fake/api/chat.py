"""The fake engine's chat completions and completions: choices become JSON responses and server-sent events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from longboat_fake.api.generation import Update, check_room, run_to_end
from longboat_fake.api.logprobs import chat_logprobs, completion_logprobs
from longboat_fake.api.requests import Choice, Request, checked_model, decoded, request_of
from longboat_fake.api.stream import stream_updates
from longboat_fake.engine.generator import FakeEngine
from longboat_fake.http.server import Exchange

__all__ = ("complete",)


async def complete(engine: FakeEngine, exchange: Exchange) -> None:
    """Answer ``/v1/chat/completions`` or ``/v1/completions``. Raises RefusedError, FaultError."""
    model = exchange.terms.name_of(engine.settings.model)
    body = checked_model(model, decoded(exchange.body))
    request = request_of(exchange.path == "/v1/chat/completions", exchange.headers, body, exchange.terms)
    check_room(engine, *(choice.job for choice in request.choices))
    if request.is_streamed:
        await _stream(engine, exchange, request)
    else:
        await run_to_end(engine, request.choices, exchange)
        exchange.answer(200, orjson.dumps(_whole(request, model)))


async def _stream(engine: FakeEngine, exchange: Exchange, request: Request) -> None:
    model = exchange.terms.name_of(engine.settings.model)

    def events(update: Update) -> list[bytes]:
        openings = _openings(update) if request.is_chat else []
        return [_event(request, model, [entry]) for entry in (*openings, _delta(request, update))]

    def end() -> list[bytes]:
        return [_event(request, model, [], usage=_usage(request))] if request.includes_usage else []

    await stream_updates(engine, exchange, request.choices, events, end, tail=b"data: [DONE]\n\n")


def _usage(request: Request) -> dict[str, int]:
    generated = sum(choice.num_tokens for choice in request.choices)
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + generated,
        "completion_tokens": generated,
    }


def _envelope(request: Request, model: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": request.request_id,
        "object": kind,
        "created": request.created,
        "model": model,
        "choices": choices,
        **({"system_fingerprint": request.fingerprint} if request.fingerprint else {}),
    }


def _event(
    request: Request, model: str, choices: list[dict[str, Any]], usage: Mapping[str, int] | None = None
) -> bytes:
    kind = "chat.completion.chunk" if request.is_chat else "text_completion"
    payload = _envelope(request, model, kind, choices)
    if usage is not None:
        payload["usage"] = usage
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _openings(update: Update) -> list[dict[str, Any]]:
    """Return what comes before a choice's first word, and before the first word of a tool call."""
    choice = update.choice
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}] if update.first == 0 else []
    if choice.tool and update.first == choice.job.num_reasoning:
        call = {"id": choice.call_id, "type": "function", "index": 0, "function": {"name": choice.tool}}
        deltas.append({"content": None, "tool_calls": [call]})
    return [{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]


def _delta(request: Request, update: Update) -> dict[str, Any]:
    choice = update.choice
    words: dict[str, Any] = {"text": update.text}
    if update.is_reasoning:
        words = {"delta": {"reasoning": update.text}}
    elif choice.tool:
        words = {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": update.text}}]}}
    elif request.is_chat:
        words = {"delta": {"content": update.text}}
    ids = {"token_ids": list(update.batch)} if request.returns_token_ids else {}
    return {
        "index": choice.index,
        **words,
        "logprobs": _logprobs(request, choice, update.first, update.first + len(update.batch)),
        "finish_reason": update.finish_reason,
        "stop_reason": choice.stops.matched if update.finish_reason else None,
        **ids,
    }


def _whole(request: Request, model: str) -> dict[str, Any]:
    answers = []
    for choice in request.choices:
        words = {"message": _message(choice)} if request.is_chat else {"text": choice.text}
        ids = {"token_ids": choice.token_ids} if request.returns_token_ids else {}
        end = {"finish_reason": choice.finish_reason, "stop_reason": choice.stops.matched}
        answers.append(
            {"index": choice.index, **words, "logprobs": _logprobs(request, choice, 0, choice.num_tokens), **end, **ids}
        )
    kind = "chat.completion" if request.is_chat else "text_completion"
    return {**_envelope(request, model, kind, answers), "usage": _usage(request)}


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None, "tool_calls": []}
    if choice.reasoning:
        message["reasoning"] = choice.reasoning
    if choice.tool:
        function = {"name": choice.tool, "arguments": choice.text}
        message |= {"content": "", "tool_calls": [{"id": choice.call_id, "type": "function", "function": function}]}
    return message


def _logprobs(request: Request, choice: Choice, first: int, end: int) -> dict[str, Any] | None:
    if request.top_logprobs is None:
        return None
    make = chat_logprobs if request.is_chat else completion_logprobs
    return make(choice.job, choice.token_ids[:end], first, request.top_logprobs)
