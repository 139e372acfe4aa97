"""The official OpenAI client against the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from fake_upstream import STREAM_HEAD, Seen, chunk

from longboat.gateway.process.server import Gateway

WORDS = ["Many", " rowers", ", one", " boat", " 🚣"]
MESSAGES: Any = [{"role": "user", "content": "motto?"}]


async def speak(seen: Seen) -> None:
    """A small engine: says the motto in the shape that was asked for."""
    ask = json.loads(seen.body)
    chat = b"/chat/" in seen.head.partition(b"\r\n")[0]
    kind = "chat.completion" if chat else "text_completion"
    if not ask.get("stream"):
        choice = {"message": {"role": "assistant", "content": "".join(WORDS)}} if chat else {"text": "".join(WORDS)}
        body = _document(ask, kind, {**choice, "finish_reason": "stop"})
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
        await seen.send(body)
        return
    await seen.send(STREAM_HEAD)
    for word in WORDS:
        part = {"delta": {"content": word}} if chat else {"text": word}
        data = _document(ask, kind + ".chunk" if chat else kind, {**part, "finish_reason": None})
        await seen.send(chunk(b"data: " + data + b"\n\n"))
        if word == ask.get("stop"):
            seen.writer.transport.abort()
            return
    await seen.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _document(ask: dict[str, Any], kind: str, choice: dict[str, Any]) -> bytes:
    document = {"id": "c-1", "object": kind, "created": 1, "model": ask["model"], "choices": [{"index": 0, **choice}]}
    return json.dumps(document).encode()


@pytest.fixture
async def gateway(make_upstream: Any, make_gateway: Any) -> Gateway:
    gateway: Gateway = await make_gateway(await make_upstream(speak))
    return gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=20.0) as client:
        yield client


async def test_openai_lists_models(client: openai.AsyncOpenAI) -> None:
    assert [m.id async for m in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).object == "model"


async def test_openai_chats(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "".join(WORDS)


async def test_openai_streams(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    assert [part.choices[0].delta.content async for part in stream] == WORDS


async def test_openai_completes(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="motto?")
    assert answer.choices[0].text == "".join(WORDS)
    stream = await client.completions.create(model="tiny", prompt="motto?", stream=True)
    assert [part.choices[0].text async for part in stream] == WORDS


async def test_openai_raises_not_found_for_an_unknown_model(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="Served: tiny") as caught:
        await client.chat.completions.create(model="tinny", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_openai_sees_a_broken_stream_as_an_error(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, stop=" rowers")
    seen: list[str | None] = []
    with pytest.raises(openai.APIError, match="middle of this response"):
        async for part in stream:
            seen.append(part.choices[0].delta.content)  # noqa: PERF401
    assert seen == WORDS[:2]
