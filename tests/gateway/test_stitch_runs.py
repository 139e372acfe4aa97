"""Many events read as few tell what they tell one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_streams import Choice, Engine, Script, Token, chat, completion
from hypothesis import given, settings
from hypothesis import strategies as st
from message_streams import message
from response_streams import response
from stream_scripts import long_script

from longboat.gateway.resume.continuation.choices import ReceivedChoices
from longboat.gateway.resume.continuation.messages import ReceivedMessage
from longboat.gateway.resume.continuation.parts import Event, Received, events_of
from longboat.gateway.resume.continuation.responses import ReceivedResponse
from longboat.gateway.resume.continuation.runs import condensed

APIS: dict[Any, type[Received]] = {
    chat: ReceivedChoices,
    completion: ReceivedChoices,
    message: ReceivedMessage,
    response: ReceivedResponse,
}


def state(value: Any) -> Any:
    """Everything that an object holds, to compare."""
    if isinstance(value, dict):
        return {key: state(item) for key, item in value.items()}
    if isinstance(value, list):
        return [state(item) for item in value]
    names = getattr(type(value), "__slots__", None) or getattr(value, "__dict__", {})
    return {name: state(getattr(value, name)) for name in names} if names else value


def told(kind: type[Received], events: Any, num_choices: int) -> tuple[Any, list[list[int]]]:
    received = kind()
    ids: list[list[int]] = [[] for _ in range(num_choices)]
    for event in events:
        for choice, new in event.ids:
            ids[choice] += new
        received.note(event)
    return state(received), ids


@settings(deadline=None, max_examples=60)
@given(
    api=st.sampled_from(list(APIS)),
    seed=st.integers(0, 2**32),
    num_choices=st.integers(1, 3),
    joined=st.booleans(),
    parsed=st.booleans(),
    options=st.fixed_dictionaries({"logprobs": st.booleans(), "usage": st.sampled_from(["", "continuous"])}),
)
def test_condensed_events_tell_the_same(
    api: Any, seed: int, num_choices: int, joined: bool, parsed: bool, options: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    num_choices = 1 if api in (message, response) else num_choices
    made = long_script(rng, num_choices, parsed or api in (message, response), **options)
    chunks = api(made, Engine(seed=seed, joined=joined))
    block = b"".join(chunks[: rng.randint(0, len(chunks))])
    one_by_one = told(APIS[api], events_of(block), num_choices)
    assert told(APIS[api], condensed(block), num_choices) == one_by_one


@pytest.mark.parametrize("api", list(APIS), ids=lambda api: api.__name__)
def test_condensed_events_are_few(api: Any) -> None:
    words = tuple(Token(id=number, pieces=(("content", f" word {number}"),)) for number in range(500))
    block = b"".join(api(Script(choices=(Choice(tokens=words),)), Engine(seed=1, largest=1)))
    assert len(list(condensed(block))) < 20 < 500 <= len(list(events_of(block)))


def test_interleaved_choices_are_condensed_too() -> None:
    words = tuple(Token(id=number, pieces=(("content", f" word {number}"),)) for number in range(300))
    block = b"".join(chat(Script(choices=(Choice(tokens=words),) * 3), Engine(seed=1, largest=1)))
    assert len(list(condensed(block))) < 100


def test_text_with_control_bytes_is_read_one_by_one() -> None:
    event = b': ids 0 1\nid: 1\ndata: {"choices":[{"index":0,"delta":{"content":"\x01"}}]}\n\n'
    assert (
        list(condensed(event * 20))
        == [Event(b"", b'{"choices":[{"index":0,"delta":{"content":"\x01"}}]}', (1,), ((0, [1]),))] * 20
    )


@pytest.mark.parametrize(
    "entries", ['"logprobs":{"content":[{"token":"%s","logprob":0.0}]}', '"token_ids":[7]', '"delta_list":[{"a":"%s"}]']
)
def test_equal_entries_of_lists_are_all_kept_and_in_order(entries: str) -> None:
    """An engine tells no log-probabilities of tokens that it only repeats, so that they look alike."""
    event = ': ids 0 1\nid: %d\ndata: {"id":"c","choices":[{"index":0,"delta":{"content":"%s"},%s}]}\n\n'
    words = ["ab"[number % 3 == 0] for number in range(60)]
    block = "".join(event % (number, word, entries.replace("%s", word)) for number, word in enumerate(words, 1))
    assert told(ReceivedChoices, condensed(block.encode()), 1) == told(ReceivedChoices, events_of(block.encode()), 1)
