"""Anthropic's messages, as its official client asks for them."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from conformance_lab import Place

ASK: Any = [{"role": "user", "content": "What is tensor parallel?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def said(claude: anthropic.Anthropic, model: str, **more: Any) -> Any:
    # The temperature is no argument of every version of the client.
    return claude.messages.create(
        **{"model": model, "messages": ASK, "max_tokens": 24, "extra_body": {"temperature": 0}, **more}
    )


def test_message_whole(claude: anthropic.Anthropic, chat: Place) -> None:
    message = said(claude, chat.model)
    assert (message.type, message.role, message.model) == ("message", "assistant", chat.model)
    assert message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.input_tokens > 0
    assert 0 < message.usage.output_tokens <= 24


def test_message_streamed_says_the_same(claude: anthropic.Anthropic, chat: Place) -> None:
    whole = said(claude, chat.model)
    with claude.messages.stream(model=chat.model, messages=ASK, max_tokens=24, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_message_events_come_in_order(claude: anthropic.Anthropic, chat: Place) -> None:
    kinds = [event.type for event in said(claude, chat.model, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_message_obeys_system_and_stop_sequence(claude: anthropic.Anthropic, chat: Place) -> None:
    text = said(claude, chat.model, system="Answer.").content[0].text
    stop = text.split()[2]
    message = said(claude, chat.model, system="Answer.", stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.index(stop)]


def test_message_calls_a_tool(claude: anthropic.Anthropic, chat: Place) -> None:
    ask: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options = {"messages": ask, "tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 80}
    message = said(claude, chat.model, **options)
    used = next(block for block in message.content if block.type == "tool_use")
    assert (used.name, message.stop_reason) == ("get_weather", "tool_use")
    assert isinstance(used.input, dict)
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "sunny"}
    turn = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": used.id, "name": used.name, "input": used.input}],
    }
    after = said(claude, chat.model, messages=[*ask, turn, {"role": "user", "content": [result]}], tools=[WEATHER])
    assert after.stop_reason


def test_tokens_are_counted_as_they_are_charged(claude: anthropic.Anthropic, chat: Place) -> None:
    counted = claude.messages.count_tokens(model=chat.model, messages=ASK)
    assert counted.input_tokens == said(claude, chat.model).usage.input_tokens


def test_message_for_an_unknown_model_is_not_found(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        said(claude, "no-such-model")
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert "no-such-model" in body["error"]["message"]


def test_message_that_makes_no_sense_is_a_bad_request(claude: anthropic.Anthropic, chat: Place) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        said(claude, chat.model, messages=[])
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["message"]
