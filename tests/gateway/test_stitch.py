"""Streams that break anywhere and are resumed: the client gets what an engine that lived would have told."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from engine_streams import Engine, Script, chat, completion
from hypothesis import given, settings
from hypothesis import strategies as st
from message_streams import message, read_message
from response_streams import read_response, response
from stream_clients import read_openai, without_own_ids
from stream_scripts import chat_scripts, completion_scripts, long_script, single_scripts

from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.resume.journal import Journal
from longboat.gateway.resume.remainder import Continuation

Build = Callable[[Script, Engine], list[bytes]]


def blocks(chunks: list[bytes], rng: random.Random) -> list[bytes]:
    """The chunks as they arrive: often several at once."""
    joined = []
    while chunks:
        size = rng.randint(1, 3)
        joined.append(b"".join(chunks[:size]))
        chunks = chunks[size:]
    return joined


def resumed(kind: AnswerKind, build: Build, script: Script, first: Engine, cuts: list[int], seed: int) -> bytes:
    """What the client gets when the engine dies after some events, and so do those that follow it."""
    rng = random.Random(seed)
    num_choices = len(script.choices)
    journal = Journal(kind, num_choices)
    cut, *more = cuts
    client = b"".join(journal.feed(block) for block in blocks(build(script, first)[:cut], rng))
    for number, next_cut in enumerate([*more, None], start=1):
        priors = journal.priors()
        for prior, choice in zip(priors, script.choices, strict=True):
            assert prior == [token.id for token in choice.tokens][: len(prior)]
        carried = tuple(min(len(prior), len(c.tokens) - 1) for prior, c in zip(priors, script.choices, strict=True))
        assert carried == tuple(map(len, priors)), "an engine is never given the end of a choice"
        engine = Engine(
            seed=seed + number,
            carried=carried,
            replays=rng.random() < 0.3,
            joined=first.joined,
            fingerprint=f"{number}",
        )
        continuation = Continuation(kind, journal)
        chunks = build(script, engine)
        for block in blocks(chunks if next_cut is None else chunks[:-1][:next_cut], rng):
            client += continuation.feed(block)
    assert journal.ids == [type(journal.ids[0])("I", [t.id for t in choice.tokens]) for choice in script.choices]
    return client


ENGINES = st.builds(Engine, seed=st.integers(0, 2**32), joined=st.booleans())


def read_chat(stream: bytes) -> dict[str, Any]:
    return without_own_ids(read_openai(stream))


API = tuple[AnswerKind, Build, Callable[[bytes], dict[str, Any]]]
CHAT: API = (AnswerKind.OPENAI_EVENTS, chat, read_chat)
COMPLETION: API = (AnswerKind.OPENAI_EVENTS, completion, read_chat)
MESSAGE: API = (AnswerKind.ANTHROPIC_EVENTS, message, read_message)
RESPONSE: API = (AnswerKind.RESPONSES_EVENTS, response, read_response)


@settings(deadline=None, max_examples=40)
@given(chat_scripts(), ENGINES, st.integers(0, 2**32))
def test_chat_resumed_after_any_event_reads_as_unbroken(script: Script, first: Engine, seed: int) -> None:
    check_all_cuts(CHAT, script, first, seed)


@settings(deadline=None, max_examples=40)
@given(completion_scripts(), ENGINES, st.integers(0, 2**32))
def test_completion_resumed_after_any_event_reads_as_unbroken(script: Script, first: Engine, seed: int) -> None:
    check_all_cuts(COMPLETION, script, first, seed)


@settings(deadline=None, max_examples=40)
@given(single_scripts(), ENGINES, st.integers(0, 2**32))
def test_message_resumed_after_any_event_reads_as_unbroken(script: Script, first: Engine, seed: int) -> None:
    check_all_cuts(MESSAGE, script, first, seed)


@settings(deadline=None, max_examples=40)
@given(single_scripts(), ENGINES, st.integers(0, 2**32))
def test_response_resumed_after_any_event_reads_as_unbroken(script: Script, first: Engine, seed: int) -> None:
    check_all_cuts(RESPONSE, script, first, seed)


@settings(deadline=None, max_examples=25)
@given(st.data(), ENGINES, st.integers(0, 2**32), st.lists(st.integers(1, 30), min_size=2, max_size=4))
@pytest.mark.parametrize("api", [CHAT, COMPLETION, MESSAGE, RESPONSE], ids=lambda api: api[1].__name__)
def test_stream_resumed_many_times_reads_as_unbroken(
    api: API, data: st.DataObject, first: Engine, seed: int, cuts: list[int]
) -> None:
    script = data.draw({CHAT: chat_scripts(), COMPLETION: completion_scripts()}.get(api, single_scripts()))
    kind, build, read = api
    whole = build(script, again(first))
    told = resumed(kind, build, script, again(first), [min(cut, len(whole) - 1) for cut in cuts], seed)
    assert read(told) == read(as_client(whole))


@settings(deadline=None, max_examples=10)
@given(st.data(), st.integers(0, 2**32), st.integers(0, 10**6))
@pytest.mark.parametrize("api", [CHAT, COMPLETION, MESSAGE, RESPONSE], ids=lambda api: api[1].__name__)
def test_long_stream_resumed_reads_as_unbroken(api: API, data: st.DataObject, seed: int, cut: int) -> None:
    kind, build, read = api
    single = api in (MESSAGE, RESPONSE)
    script = long_script(random.Random(seed), 1 if single else data.draw(st.integers(1, 2)), single or api is CHAT)
    whole = build(script, Engine(seed=seed))
    told = resumed(kind, build, script, Engine(seed=seed), [cut % (len(whole) - 1) + 1], seed)
    assert read(told) == read(as_client(whole))


def check_all_cuts(api: API, script: Script, first: Engine, seed: int) -> None:
    kind, build, read = api
    whole = build(script, again(first))
    expected = read(as_client(whole))
    for cut in range(1, len(whole)):
        told = resumed(kind, build, script, again(first), [cut], seed + cut)
        assert read(told) == expected, cut


def again(engine: Engine) -> Engine:
    return Engine(seed=engine.seed, joined=engine.joined)


def as_client(chunks: list[bytes]) -> bytes:
    lines = b"".join(chunks).split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(b":"))
