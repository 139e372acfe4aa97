"""The journal: clients get nothing that was meant for it; it knows what another engine needs, and stays small."""

from __future__ import annotations

import random

import pytest
from engine_streams import Choice, Engine, Script, Token, chat, completion
from hypothesis import given, settings
from hypothesis import strategies as st
from message_streams import message
from response_streams import response
from stream_scripts import chat_scripts

from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.resume.journal import PACK_BYTES, Journal

CHAT = AnswerKind.OPENAI_EVENTS


def event(text: str, *, index: int = 0, finish: str = "null") -> bytes:
    choice = f'{{"index":{index},"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{finish}}}'
    return f'data: {{"id":"c","object":"chat.completion.chunk","created":1,"choices":[{choice}]}}\n\n'.encode()


def test_client_gets_the_event_without_the_ids() -> None:
    journal = Journal(CHAT)
    assert journal.feed(b": ids 0 77\nid: 1\n" + event("a")) == b"id: 1\n" + event("a")
    assert journal.priors() == [[77]]


def test_several_ids_of_several_choices_are_told_apart() -> None:
    journal = Journal(CHAT, 2)
    block = b": ids 0 1,2\n: ids 1 3\nid: 2.1\n" + event("a") + b"id: 2.1\n" + event("b", index=1)
    assert journal.feed(block) == b"id: 2.1\n" + event("a") + b"id: 2.1\n" + event("b", index=1)
    assert journal.priors() == [[1, 2], [3]]


def test_steps_are_learned_and_leave_nothing() -> None:
    journal = Journal(CHAT)
    assert journal.engine_steps == -1
    assert journal.feed(b": steps 12\n\n") == b""
    assert journal.feed(b": steps 13\n\n: ids 0 5\nid: 1\n" + event("a")) == b"id: 1\n" + event("a")
    assert (journal.engine_steps, journal.num_tokens) == (13, 1)


def test_comments_of_others_stay() -> None:
    block = b": ping\n\n: ids of nothing\nid: 1\n" + event(": ids 0 1")
    journal = Journal(CHAT)
    assert journal.feed(b": ping\n\n" + event("a")) == b": ping\n\n" + event("a")
    assert journal.feed(b": ids 0 4\n" + event("a")) == event("a")
    assert b"ping" in journal.feed(block)


def test_stream_of_an_engine_without_a_journal_passes_as_it_is_and_is_not_resumable() -> None:
    journal = Journal(CHAT)
    stream = event("a").replace(b"\n", b"\r\n") + event("b") + b"data: [DONE]\n\n"
    assert journal.feed(stream) == stream
    assert not journal.is_resumable


@settings(deadline=None)
@given(chat_scripts(), st.integers(0, 2**32))
def test_no_byte_of_a_client_is_changed_however_the_stream_is_cut_into_blocks(script: Script, seed: int) -> None:
    rng = random.Random(seed)
    chunks = chat(script, Engine(seed=seed, joined=rng.random() < 0.5))
    blocks = b"".join(chunks).split(b"\n\n")
    cuts = sorted(rng.sample(range(1, len(blocks)), rng.randint(0, len(blocks) - 2)))
    journal = Journal(CHAT, len(script.choices))
    told = b""
    for start, end in zip([0, *cuts], [*cuts, len(blocks) - 1], strict=True):
        told += journal.feed(b"".join(block + b"\n\n" for block in blocks[start:end]))
    lines = b"".join(chunks).split(b"\n")
    assert told == b"\n".join(line for line in lines if not line.startswith(b": "))
    assert journal.num_tokens == sum(len(choice.tokens) for choice in script.choices)
    assert [ids.tolist() for ids in journal.ids] == [[token.id for token in c.tokens] for c in script.choices]


def test_a_token_whose_event_the_client_lacks_is_not_carried() -> None:
    journal = Journal(CHAT, 2)
    journal.feed(b": ids 0 1\n: ids 1 8\nid: 1.1\n" + event("a"))
    assert journal.priors() == [[1], []]


def test_a_finished_choice_is_carried_without_its_last_token() -> None:
    journal = Journal(CHAT, 2)
    journal.feed(b": ids 0 1,2,3\nid: 3.0\n" + event("a", finish='"stop"'))
    journal.feed(b": ids 1 4,5\nid: 3.2\n" + event("b", index=1))
    assert journal.priors() == [[1, 2], [4, 5]]


@pytest.mark.parametrize("build", [message, response], ids=lambda build: build.__name__)
def test_a_message_or_response_is_carried_without_its_last_token(build: object) -> None:
    """No event says with its text that this was the last token, as those of a chat do."""
    kind = AnswerKind.ANTHROPIC_EVENTS if build is message else AnswerKind.RESPONSES_EVENTS
    words = tuple(Token(id=number, pieces=(("content", "a "),)) for number in range(20))
    chunks = build(Script(choices=(Choice(tokens=words),)), Engine(seed=1, largest=1))  # type: ignore[operator]
    for cut in range(len(chunks)):
        journal = Journal(kind)
        journal.feed(b"".join(chunks[:cut]))
        assert journal.priors() == [list(range(max(journal.num_tokens - 1, 0)))]


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b'data: {"error":{"message":"broken"}}\n\n'])
def test_a_stream_that_ended_or_failed_before_the_client_is_not_resumable(end: bytes) -> None:
    journal = Journal(CHAT)
    journal.feed(b": ids 0 1\nid: 1\n" + event("a"))
    assert journal.is_resumable
    journal.feed(end)
    assert not journal.is_resumable


@pytest.mark.parametrize(
    "garbage",
    [
        b": ids 0 x\nid: 2\n" + event("b"),
        b": ids 7 1\nid: 2\n" + event("b"),
        b": ids 0 -1\nid: 2\n" + event("b"),
        b": ids 0 1\nid: 2\ndata: {garbage\n\n",
        b": ids 0 1\nid: x\n" + event("b"),
        b": ids 0 1\nid: 2\ndata: [1]\n\n",
        b': ids 0 1\nid: 2\ndata: {"choices":[3]}\n\n',
    ],
)
def test_a_journal_that_read_garbage_is_not_resumable(garbage: bytes) -> None:
    journal = Journal(CHAT)
    journal.feed(b": ids 0 1\nid: 1\n" + event("a"))
    journal.feed(garbage)
    assert not journal.is_resumable
    journal.feed(b": ids 0 1\nid: 3\n" + event("c"))
    assert not journal.is_resumable


@pytest.mark.parametrize("build", [chat, completion, message, response], ids=lambda build: build.__name__)
def test_a_long_stream_is_kept_small_and_known_in_full(build: object) -> None:
    kinds = {message: AnswerKind.ANTHROPIC_EVENTS, response: AnswerKind.RESPONSES_EVENTS}
    rng = random.Random(1)
    words = tuple(Token(id=rng.randrange(150_000), pieces=(("content", f" w{rng.random():.3f}"),)) for _ in range(9000))
    chunks = build(Script(choices=(Choice(tokens=words),)), Engine(seed=1, largest=1))  # type: ignore[operator]
    journal = Journal(kinds.get(build, CHAT))  # type: ignore[call-overload]
    most_bytes = 0
    for number, chunk in enumerate(chunks[:-4]):
        journal.feed(chunk)
        if number % 100 == 0:
            most_bytes = max(most_bytes, journal.held_bytes)
    assert sum(map(len, chunks)) > 4 * PACK_BYTES
    assert most_bytes < 2.5 * PACK_BYTES
    assert journal.num_tokens > 8990
    assert journal.is_resumable
    prior = journal.priors()[0]
    assert prior == [token.id for token in words][: len(prior)]
    assert len(prior) >= journal.num_tokens - 1


def test_a_stream_that_takes_too_much_is_given_up() -> None:
    rng = random.Random(1)
    journal = Journal(CHAT, max_held_bytes=100_000)
    for number in range(2000):
        text = "".join(rng.choices("abcdefghijklmnop", k=300))
        assert journal.feed(b": ids 0 1\nid: %d\n" % number + event(text)).startswith(b"id")
    assert not journal.is_resumable
    assert journal.held_bytes < 2 * PACK_BYTES


def test_ids_whose_event_is_still_to_come_take_nothing_from_the_event_before() -> None:
    journal = Journal(CHAT)
    assert journal.feed(b": ids 0 77\nid: 1\n" + event("a") + b": ids 0 78\n") == b"id: 1\n" + event("a")


def test_ids_that_come_before_their_event_are_kept() -> None:
    journal = Journal(CHAT)
    assert journal.feed(b": ids 0 77\n") == b""
    assert journal.feed(b": ids 0 78\nid: 2\n" + event("ab")) == b"id: 2\n" + event("ab")
    assert [list(ids) for ids in journal.ids] == [[77, 78]]
