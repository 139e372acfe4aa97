"""The Responses API, as the official OpenAI client asks for it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from conformance_lab import Place, Target

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


def asked(client: openai.OpenAI, model: str, **more: Any) -> Any:
    options = {"input": "What is tensor parallel?", "temperature": 0, **more}
    return client.responses.create(model=model, **options)


@pytest.fixture
def keeps_state(target: Target) -> None:
    if target.engine == "vllm":
        pytest.skip("vLLM keeps no responses unless it is told to")


def test_response_whole(client: openai.OpenAI, chat: Place) -> None:
    response = asked(client, chat.model, instructions="Answer.")
    assert (response.object, response.model, response.status) == ("response", chat.model, "completed")
    assert response.output_text
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_input_tokens_are_counted_as_the_response_counts_them(client: openai.OpenAI, chat: Place) -> None:
    asks = {"input": "What is tensor parallel?", "instructions": "Answer."}
    counted = client.responses.input_tokens.count(model=chat.model, **asks)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == asked(client, chat.model, **asks).usage.input_tokens


def test_input_tokens_of_nothing_are_refused(client: openai.OpenAI, chat: Place) -> None:
    with pytest.raises(openai.BadRequestError):
        client.responses.input_tokens.count(model=chat.model, input=7)  # type: ignore[arg-type]


def test_response_that_is_cut_is_incomplete(client: openai.OpenAI, chat: Place) -> None:
    response = asked(client, chat.model, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.output_tokens == 3


def test_response_streamed_says_the_same(client: openai.OpenAI, chat: Place) -> None:
    whole = asked(client, chat.model)
    events = list(asked(client, chat.model, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_response_takes_items(client: openai.OpenAI, chat: Place) -> None:
    turns = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": [{"type": "input_text", "text": "What is tensor parallel?"}]},
    ]
    assert asked(client, chat.model, input=turns).output_text


def test_response_calls_a_tool(client: openai.OpenAI, chat: Place) -> None:
    ask = {"input": "What is the weather in Oslo?", "tools": [WEATHER], "tool_choice": "required"}
    response = asked(client, chat.model, **ask)
    call = next(item for item in response.output if item.type == "function_call")
    assert call.name == "get_weather"
    assert isinstance(json.loads(call.arguments), dict)
    events = list(asked(client, chat.model, stream=True, **ask))
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(pieces)) == json.loads(call.arguments)


def test_response_by_schema(client: openai.OpenAI, chat: Place) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    wanted = {"format": {"type": "json_schema", "name": "rower", "schema": schema, "strict": True}}
    response = asked(client, chat.model, input="Give me a rower as JSON.", text=wanted)
    value = json.loads(response.output_text)
    assert {name: type(member) for name, member in value.items()} == {"name": str, "age": int}


@pytest.mark.usefixtures("keeps_state")
def test_response_is_kept_and_carried_on(client: openai.OpenAI, chat: Place) -> None:
    first = asked(client, chat.model)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = asked(client, chat.model, input="And then?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.total_tokens


@pytest.mark.usefixtures("keeps_state")
def test_response_in_the_background_can_be_cancelled(client: openai.OpenAI, chat: Place) -> None:
    queued = asked(client, chat.model, background=True, max_output_tokens=900)
    assert queued.status in ("queued", "in_progress")
    try:
        assert client.responses.cancel(queued.id).status == "cancelled"
    except openai.BadRequestError as error:  # it was done before
        assert "cancel" in str(error)
        assert client.responses.retrieve(queued.id).status in ("completed", "incomplete")


def test_response_that_nobody_keeps_is_refused(client: openai.OpenAI, chat: Place) -> None:
    for ask in (
        lambda: client.responses.retrieve("resp_0123456789abcdef"),
        lambda: client.responses.cancel("resp_0123456789abcdef"),
        lambda: asked(client, chat.model, previous_response_id="resp_0123456789abcdef"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert caught.value.body
