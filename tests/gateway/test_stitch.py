"""Streams that break anywhere and are resumed: the client gets what an engine that lived would have told."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from engine_streams import Engine, Script, chat, completion
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_clients import read_openai, without_own_ids
from stream_scripts import chat_scripts, completion_scripts

from longboat.gateway.journal import Journal
from longboat.gateway.stitch import Stitcher
from longboat.gateway.usage import AnswerKind

Build = Callable[[Script, Engine], list[bytes]]
CHAT = AnswerKind.OPENAI_EVENTS


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
            seed=seed + number, carried=carried, replays=rng.random() < 0.3, joined=first.joined, fingerprint=f"{number}"
        )
        stitcher = Stitcher(kind, journal)
        chunks = build(script, engine)
        for block in blocks(chunks if next_cut is None else chunks[:-1][:next_cut], rng):
            client += stitcher.feed(block)
    assert journal.ids == [type(journal.ids[0])("I", [t.id for t in choice.tokens]) for choice in script.choices]
    return client


ENGINES = st.builds(Engine, seed=st.integers(0, 2**32), joined=st.booleans())


@settings(deadline=None)
@given(chat_scripts(), ENGINES, st.integers(0, 2**32))
def test_chat_resumed_after_any_event_reads_as_unbroken(script: Script, first: Engine, seed: int) -> None:
    _check_all_cuts(chat, script, first, seed)


@settings(deadline=None)
@given(completion_scripts(), ENGINES, st.integers(0, 2**32))
def test_completion_resumed_after_any_event_reads_as_unbroken(script: Script, first: Engine, seed: int) -> None:
    _check_all_cuts(completion, script, first, seed)


def _check_all_cuts(build: Build, script: Script, first: Engine, seed: int) -> None:
    whole = build(script, _again(first))
    expected = without_own_ids(read_openai(_as_client(whole)))
    for cut in range(1, len(whole)):
        told = resumed(CHAT, build, script, _again(first), [cut], seed + cut)
        assert without_own_ids(read_openai(told)) == expected, cut


@settings(deadline=None)
@given(chat_scripts(), ENGINES, st.integers(0, 2**32), st.lists(st.integers(1, 30), min_size=2, max_size=4))
def test_chat_resumed_many_times_reads_as_unbroken(script: Script, first: Engine, seed: int, cuts: list[int]) -> None:
    whole = chat(script, _again(first))
    cuts = [min(cut, len(whole) - 1) for cut in cuts]
    told = resumed(CHAT, chat, script, _again(first), cuts, seed)
    assert without_own_ids(read_openai(told)) == without_own_ids(read_openai(_as_client(whole)))


def _again(engine: Engine) -> Engine:
    return Engine(seed=engine.seed, joined=engine.joined)


def _as_client(chunks: list[bytes]) -> bytes:
    lines = b"".join(chunks).split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(b":"))
