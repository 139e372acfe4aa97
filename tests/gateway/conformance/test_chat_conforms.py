"""Chat completions and completions, as the official OpenAI client asks for them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from conformance_lab import DEADLINE_S, Place, Target

ASK: Any = [{"role": "user", "content": "What is tensor parallel?"}]
WEATHER_ASK: Any = [{"role": "user", "content": "What is the weather in Oslo? use get_weather"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA: Any = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def said(client: openai.OpenAI, model: str, **more: Any) -> Any:
    options = {"messages": ASK, "temperature": 0, "max_tokens": 24, **more}
    return client.chat.completions.create(model=model, **options)


def test_chat_whole(client: openai.OpenAI, chat: Place) -> None:
    answer = said(client, chat.model)
    assert answer.object == "chat.completion"
    assert answer.model == chat.model
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 24


def test_chat_streamed_says_the_same(client: openai.OpenAI, chat: Place) -> None:
    whole = said(client, chat.model).choices[0]
    parts = [part for part in said(client, chat.model, stream=True) if part.choices]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert [part.choices[0].finish_reason for part in parts][-1] == whole.finish_reason
    assert {part.object for part in parts} == {"chat.completion.chunk"}
    assert len({part.id for part in parts}) == 1


def test_chat_stream_tells_usage_only_when_asked(client: openai.OpenAI, chat: Place) -> None:
    whole = said(client, chat.model).usage
    parts = list(said(client, chat.model, stream=True, stream_options={"include_usage": True}))
    assert parts[-1].choices == []
    assert (parts[-1].usage.prompt_tokens, parts[-1].usage.completion_tokens) == (
        whole.prompt_tokens,
        whole.completion_tokens,
    )
    assert all(part.usage is None for part in parts[:-1])
    for options in ({}, {"stream_options": {"include_usage": False}}):
        silent = list(said(client, chat.model, stream=True, **options))
        assert all(part.usage is None and part.choices for part in silent)


def test_chat_gives_several_choices(client: openai.OpenAI, chat: Place) -> None:
    answer = said(client, chat.model, n=3, max_tokens=6, temperature=0.8, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens <= 18
    parts = list(said(client, chat.model, n=2, max_tokens=6, temperature=0.8, stream=True))
    ended = [part.choices[0].index for part in parts if part.choices and part.choices[0].finish_reason]
    assert sorted(ended) == [0, 1]


def test_chat_stops_where_it_is_told(client: openai.OpenAI, chat: Place) -> None:
    text = said(client, chat.model).choices[0].message.content
    stop = text.split()[3]
    choice = said(client, chat.model, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == text[: text.index(stop)]
    parts = said(client, chat.model, stop=[stop], stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == choice.message.content


def test_chat_limits_its_length(client: openai.OpenAI, chat: Place) -> None:
    answer = client.chat.completions.create(model=chat.model, messages=ASK, max_completion_tokens=3)
    assert (answer.choices[0].finish_reason, answer.usage and answer.usage.completion_tokens) == ("length", 3)


def test_chat_tells_log_probabilities(client: openai.OpenAI, chat: Place) -> None:
    choice = said(client, chat.model, logprobs=True, top_logprobs=2, max_tokens=5).choices[0]
    content = choice.logprobs.content
    assert len(content) == 5
    assert "".join(entry.token for entry in content) == choice.message.content
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in content)
    parts = list(said(client, chat.model, logprobs=True, top_logprobs=2, max_tokens=5, stream=True))
    told = [part.choices[0].logprobs for part in parts if part.choices]
    tokens = [entry.token for logprobs in told if logprobs for entry in logprobs.content or ()]
    assert tokens == [entry.token for entry in content]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}, "auto"])
def test_chat_calls_a_tool(client: openai.OpenAI, chat: Place, choice: Any) -> None:
    ask = {"messages": WEATHER_ASK, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 80}
    whole = said(client, chat.model, **ask).choices[0]
    assert whole.finish_reason in ("tool_calls", "stop")
    call = whole.message.tool_calls[0]
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert call.id
    assert isinstance(json.loads(call.function.arguments), dict)
    streamed = [
        piece
        for part in said(client, chat.model, stream=True, **ask)
        if part.choices
        for piece in part.choices[0].delta.tool_calls or ()
    ]
    assert "".join(piece.function.name or "" for piece in streamed) == "get_weather"
    arguments = "".join(piece.function.arguments or "" for piece in streamed)
    assert json.loads(arguments) == json.loads(call.function.arguments)


def test_chat_goes_on_after_a_tool_answered(client: openai.OpenAI, chat: Place) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages: Any = [
        *WEATHER_ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
    ]
    answer = said(client, chat.model, messages=messages, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.content


@pytest.mark.parametrize("streamed", [False, True])
def test_chat_answers_by_schema(client: openai.OpenAI, chat: Place, streamed: bool) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "rower", "schema": SCHEMA, "strict": True}}
    messages = [{"role": "user", "content": "Give me a rower as JSON."}]
    answer = said(client, chat.model, messages=messages, response_format=wanted, max_tokens=100, stream=streamed)
    if streamed:
        text = "".join(part.choices[0].delta.content or "" for part in answer if part.choices)
    else:
        text = answer.choices[0].message.content
    value = json.loads(text)
    assert {name: type(member) for name, member in value.items()} == {"name": str, "age": int}


def test_chat_thinks_on_request(client: openai.OpenAI, target: Target) -> None:
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    answer = said(client, target.chat.model, messages=messages, extra_body=thinking, max_tokens=100)
    assert answer.choices[0].message.reasoning
    assert answer.choices[0].message.content


def test_stream_is_events_that_end_in_done(chat: Place) -> None:
    body = {"model": chat.model, "messages": ASK, "stream": True, "max_tokens": 4}
    with httpx.stream(
        "POST", f"{chat.url}/v1/chat/completions", json=body, headers=chat.headers, timeout=DEADLINE_S
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        text = response.read().decode()
    blocks = text.strip().split("\n\n")
    assert blocks[-1] == "data: [DONE]"
    assert all(block.startswith("data: {") for block in blocks[:-1])


def test_completion_whole_and_streamed(client: openai.OpenAI, chat: Place) -> None:
    ask: Any = {"model": chat.model, "prompt": "Once upon a time", "max_tokens": 10, "temperature": 0}
    whole = client.completions.create(**ask)
    assert whole.object == "text_completion"
    assert whole.choices[0].text
    parts = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text
    assert parts[-1].usage is not None
    assert whole.usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completion_takes_texts_and_token_ids(client: openai.OpenAI, chat: Place) -> None:
    texts = client.completions.create(model=chat.model, prompt=["one boat", "two oars"], max_tokens=2)
    assert [choice.index for choice in texts.choices] == [0, 1]
    ids = client.completions.create(model=chat.model, prompt=[[5, 6, 7], [8, 9]], max_tokens=2)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 5


def test_completion_tells_log_probabilities(client: openai.OpenAI, chat: Place) -> None:
    answer = client.completions.create(model=chat.model, prompt="one boat", max_tokens=3, logprobs=2, temperature=0)
    told = answer.choices[0].logprobs
    assert told is not None
    assert len(told.tokens or ()) == len(told.token_logprobs or ()) == len(told.top_logprobs or ()) == 3
    assert "".join(told.tokens or ()) == answer.choices[0].text
