"""The fake engine's transcriptions and translations; their words depend on the bytes of the file alone."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import aclosing
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

import orjson

from longboat_fake.api.generation import check_room, run_to_end, updates_of
from longboat_fake.api.requests import Choice, RefusedError, Request, checked_model, request_of
from longboat_fake.engine.generator import FakeEngine
from longboat_fake.engine.tokens import VOCABULARY
from longboat_fake.http.server import Exchange

__all__ = ("answer_audio", "form_of")

_BYTES_PER_S = 32_000  # 16-bit sound at 16 kHz
_BYTES_PER_TOKEN = 640  # 20 ms
_MAX_PROMPT_TOKENS = 1500  # Whisper's tokens of 30 s of sound
_FORMATS = ("json", "text", "verbose_json")


async def answer_audio(engine: FakeEngine, exchange: Exchange) -> None:
    """Answer ``/v1/audio/transcriptions`` or ``…/translations``. Raises RefusedError, FaultError."""
    form = form_of(exchange.headers.get("content-type", ""), exchange.body)
    sound, kind = form.get("file"), exchange.path.rpartition("/")[2].removesuffix("s")
    if not sound:
        raise RefusedError(400, "file: Field required", "file")
    fields = checked_model(
        engine.settings.model,
        {name: value.decode("utf-8", "replace") for name, value in form.items() if name != "file"},
    )
    if fields.get("response_format", "json") not in _FORMATS:
        raise RefusedError(400, f"response_format must be one of {', '.join(_FORMATS)}", "response_format")
    request = request_of(False, exchange.headers, _as_completion(sound, fields, kind), exchange.terms)
    check_room(engine, request.choices[0].job)
    if fields.get("stream", "").lower() in ("true", "1"):
        await _stream(engine, exchange, request, kind, fields)
        return
    await run_to_end(engine, request.choices)
    _answer(exchange, request.choices[0], kind, fields, len(sound) / _BYTES_PER_S)


def form_of(content_type: str, body: bytes) -> dict[str, bytes]:
    """Return the parts of a multipart form by name; of equal names the last. Raises RefusedError."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    message = BytesParser(policy=HTTP).parsebytes(head + body)
    if message.get_content_type() != "multipart/form-data" or not message.is_multipart():
        raise RefusedError(400, "the body must be a form (multipart/form-data)")
    form: dict[str, bytes] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            form[name] = content
    return form


def _as_completion(sound: bytes, fields: Mapping[str, str], kind: str) -> dict[str, Any]:
    """Translate sound into a completion request with one token id per 20 ms.

    Where the form sets no limit, the response ends naturally.
    """
    step = max(_BYTES_PER_TOKEN, math.ceil(len(sound) / _MAX_PROMPT_TOKENS))
    pieces = [sound[start : start + step] for start in range(0, len(sound), step)]
    prompt = [len(kind), *(sum(piece) % len(VOCABULARY) for piece in pieces)]
    limit = fields.get("max_completion_tokens")
    if limit and not limit.isdecimal():
        raise RefusedError(400, "max_completion_tokens must be a whole number, 1 or more", "max_completion_tokens")
    return {"prompt": prompt, "max_tokens": int(limit) if limit else 8 + sum(prompt) % 32}


def _answer(exchange: Exchange, choice: Choice, kind: str, fields: Mapping[str, str], duration_s: float) -> None:
    asked = fields.get("response_format", "json")
    if asked == "text":
        exchange.answer(200, choice.text.encode() + b"\n", "text/plain; charset=utf-8")
        return
    document: dict[str, Any] = {"text": choice.text}
    if asked == "verbose_json":
        segment = {"id": 0, "start": 0.0, "end": duration_s, "seek": 0, "text": choice.text, "tokens": choice.token_ids}
        likely = {"avg_logprob": -0.25, "compression_ratio": 1.0, "no_speech_prob": 0.0, "temperature": 0.0}
        document |= {"duration": duration_s, "language": fields.get("language", "en"), "words": None}
        document["segments"] = [{**segment, **likely}]
    elif kind == "transcription":
        document["usage"] = {"type": "duration", "seconds": math.ceil(duration_s)}
    exchange.answer(200, orjson.dumps(document))


async def _stream(
    engine: FakeEngine, exchange: Exchange, request: Request, kind: str, fields: Mapping[str, str]
) -> None:
    choice = request.choices[0]
    head: dict[str, Any] = {"id": f"{kind}-{request.request_id}", "object": f"{kind}.chunk"}
    head |= {"created": int(time.time()), "model": engine.settings.model}
    exchange.start_stream()
    async with aclosing(updates_of(engine, request.choices)) as updates:
        async for update in updates:
            end = {"finish_reason": "stop", "stop_reason": None} if update.finish_reason else {}
            await exchange.send(_event({**head, "choices": [{"delta": {"content": update.text}, **end}]}))
    tail = b"data: [DONE]\n\n"
    if fields.get("stream_include_usage", "").lower() in ("true", "1"):
        read, made = request.prompt_tokens, choice.num_tokens
        usage = {"prompt_tokens": read, "total_tokens": read + made, "completion_tokens": made}
        tail = _event({**head, "choices": [], "usage": usage}) + tail
    await exchange.send(tail)
    exchange.end_stream()


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"
