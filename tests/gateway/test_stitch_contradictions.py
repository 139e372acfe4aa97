"""What a new engine may not tell: nothing of it reaches the client. And what it may tell otherwise."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from engine_streams import Choice, Engine, Script, Token, chat, completion
from hypothesis import given, settings
from hypothesis import strategies as st
from message_streams import message, read_message
from response_streams import read_response, response
from stream_clients import read_openai, without_own_ids
from stream_scripts import long_script

from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.resume.journal import Journal
from longboat.gateway.resume.remainder import Continuation, ContinuationError

KINDS = {message: AnswerKind.ANTHROPIC_EVENTS, response: AnswerKind.RESPONSES_EVENTS}
APIS = [chat, completion, message, response]


def said(*texts: str, **options: Any) -> Script:
    words = tuple(Token(id=number, pieces=(("content", text),)) for number, text in enumerate(texts))
    return Script(choices=(Choice(tokens=words),), **options)


def continuation_after(build: Any, script: Script, num_events: int) -> tuple[Continuation, Journal]:
    """One for a client that has the first events of a stream."""
    journal = Journal(KINDS.get(build, AnswerKind.OPENAI_EVENTS), len(script.choices))
    for chunk in build(script, Engine(seed=1, largest=1))[:num_events]:
        journal.feed(chunk)
    return Continuation(KINDS.get(build, AnswerKind.OPENAI_EVENTS), journal), journal


def feed_all(continuation: Continuation, chunks: list[bytes]) -> bytes:
    return b"".join(map(continuation.feed, chunks))


@pytest.mark.parametrize("build", APIS, ids=lambda build: build.__name__)
def test_another_text_is_refused_before_anything_is_told(build: Any) -> None:
    continuation, journal = continuation_after(build, said(*"abcdefghij"), 7)
    num_kept = journal.held_bytes
    with pytest.raises(ContinuationError):
        feed_all(continuation, build(said(*"aXcdefghij"), Engine(seed=2, largest=1)))
    assert journal.held_bytes == num_kept


@pytest.mark.parametrize("build", APIS, ids=lambda build: build.__name__)
def test_an_answer_that_ends_before_what_the_client_has_is_refused(build: Any) -> None:
    continuation, _ = continuation_after(build, said(*"abcdefghij"), 8)
    with pytest.raises(ContinuationError):
        feed_all(continuation, build(said("a", "b"), Engine(seed=2, largest=1)))


@pytest.mark.parametrize("build", [chat, message, response], ids=lambda build: build.__name__)
def test_a_call_of_another_tool_is_refused(build: Any) -> None:
    words = (Token(id=1, pieces=((0, '{"a"'),)), Token(id=2, pieces=((0, ":1}"),)), Token(id=3))
    script = Script(choices=(Choice(tokens=words),), tools=("find",))
    continuation, _ = continuation_after(build, script, 3)
    with pytest.raises(ContinuationError):
        feed_all(continuation, build(replace(script, tools=("delete",)), Engine(seed=2, largest=1)))


@pytest.mark.parametrize(
    ("build", "failure"),
    [
        (chat, b'data: {"error":{"message":"out of memory","code":500}}\n\n'),
        (completion, b'data: {"error":{"message":"out of memory","code":500}}\n\n'),
        (message, b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"no"}}\n\n'),
        (response, b'event: error\ndata: {"type":"error","message":"no","sequence_number":9}\n\n'),
        (response, b'event: response.failed\ndata: {"type":"response.failed","response":{"id":"a"}}\n\n'),
    ],
)
@pytest.mark.parametrize("num_before", [0, 4, 9])
def test_an_error_of_the_new_engine_is_not_told(build: Any, failure: bytes, num_before: int) -> None:
    script = said("one", " two", " three", " four", " five", " six", " seven")
    continuation, _ = continuation_after(build, script, 4)
    feed_all(continuation, build(script, Engine(seed=2, largest=1))[:num_before])
    with pytest.raises(ContinuationError):
        continuation.feed(failure)


@pytest.mark.parametrize("build", APIS, ids=lambda build: build.__name__)
@pytest.mark.parametrize(
    "garbage",
    [b"data: {torn\n\n", b"data: 7\n\n", b'data: {"choices":[1],"type":"content_block_stop"}\n\n', b": ids x 1\n\n"],
)
def test_garbage_is_refused(build: Any, garbage: bytes) -> None:
    continuation, _ = continuation_after(build, said("one", " two", " three"), 4)
    with pytest.raises(ContinuationError):
        continuation.feed(garbage)


def test_steps_of_the_new_engine_are_learned_and_not_told() -> None:
    continuation, journal = continuation_after(chat, said("one", " two"), 2)
    assert continuation.feed(b": steps 7\n\n") == b""
    feed_all(continuation, chat(said("one", " two"), Engine(seed=2)))
    assert continuation.caught_up
    assert continuation.feed(b": steps 8\n\n") == b""
    assert journal.engine_steps == 8


def test_a_finished_choice_counts_as_the_client_has_it_though_the_new_engine_goes_on() -> None:
    """Where kernels differ between batches, the last token of a choice may be another one the second time."""
    ended = Choice(tokens=(Token(id=1, pieces=(("content", "a"),)), Token(id=2)))
    longer = Choice(tokens=(*ended.tokens[:1], *(Token(id=5, pieces=(("content", "x"),)) for _ in range(6))))
    other = Choice(tokens=tuple(Token(id=9, pieces=(("content", "b"),)) for _ in range(20)))
    whole = chat(Script(choices=(ended, other)), Engine(seed=1, largest=1))
    cut = next(number for number, chunk in enumerate(whole, start=1) if b'"finish_reason":"stop"' in chunk)
    continuation, journal = continuation_after(chat, Script(choices=(ended, other)), cut)
    client = journal.feed(b"") + b"".join(Journal(AnswerKind.OPENAI_EVENTS, 2).feed(chunk) for chunk in whole[:cut])
    client += feed_all(continuation, chat(Script(choices=(longer, other)), Engine(seed=2, carried=(1, 3))))
    expected = Journal(AnswerKind.OPENAI_EVENTS, 2).feed(b"".join(whole))
    assert without_own_ids(read_openai(client)) == without_own_ids(read_openai(expected))
    assert json.loads(client.split(b"data: ")[-2])["usage"]["completion_tokens"] == 22


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(APIS), st.integers(0, 2**32), st.integers(0, 10**6))
def test_text_may_come_with_other_tokens_than_before(build: Any, seed: int, cut: int) -> None:
    """An engine that holds text back (stop strings, half characters) may let it go at another token."""
    rng = random.Random(seed)
    script = long_script(rng, 1, build is not completion)
    held = replace(script, choices=(held_back(script.choices[0], rng),))
    whole = build(script, Engine(seed=seed))
    continuation, journal = continuation_after(build, script, 0)
    client = b"".join(map(journal.feed, whole[: cut % (len(whole) - 1) + 1]))
    continuation = Continuation(KINDS.get(build, AnswerKind.OPENAI_EVENTS), journal)
    client += feed_all(continuation, build(held, Engine(seed=seed + 1, carried=(len(journal.priors()[0]),))))
    read: Any = {message: read_message, response: read_response}.get(build, lambda s: without_own_ids(read_openai(s)))
    expected = Journal(KINDS.get(build, AnswerKind.OPENAI_EVENTS)).feed(b"".join(whole))
    assert read(client) == read(expected)


def held_back(choice: Choice, rng: random.Random) -> Choice:
    """The same choice with text moved to later tokens; what is said in all is the same."""
    waiting: tuple[tuple[str | int, str], ...] = ()
    tokens = []
    for token in choice.tokens:
        pieces = (*waiting, *token.pieces)
        changes = bool(waiting) and bool(token.pieces) and waiting[-1][0] != token.pieces[0][0]
        holds = rng.random() < 0.4 and not changes
        waiting = pieces if holds else ()
        tokens.append(replace(token, pieces=() if holds else pieces))
    return replace(choice, tokens=(*tokens[:-1], replace(tokens[-1], pieces=(*tokens[-1].pieces, *waiting))))
