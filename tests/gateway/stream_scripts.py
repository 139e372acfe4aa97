"""Scripts for engines' streams, drawn by hypothesis: what models say, split at random places."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from engine_streams import Choice, Script, Token
from hypothesis import strategies as st

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x00") | st.sampled_from('"\\\n:🦜é{}ids '), max_size=12
)
IDS = st.integers(0, 2**32 - 1)
LOGPROBS = st.floats(-20, 0, allow_nan=False)


@st.composite
def tokens(draw: st.DrawFn, channels: tuple[str | int, ...]) -> tuple[Token, ...]:
    """Tokens that say one text per channel, in order; some say nothing, some end one channel and begin the next."""
    pieces: list[tuple[tuple[str | int, str], ...]] = []
    for channel in channels:
        text = draw(TEXTS)
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        spoken = [((channel, part),) for part in parts]
        if pieces and spoken and draw(st.booleans()):
            pieces[-1] = (*pieces[-1], *spoken.pop(0))
        pieces += spoken
        if draw(st.booleans()):
            pieces.append(())
    pieces = pieces or [()]
    return tuple(
        Token(id=draw(IDS), pieces=tuple(p for p in said if p[1] or isinstance(p[0], int)), logprob=draw(LOGPROBS))
        for said in pieces
    )


@st.composite
def chat_scripts(draw: st.DrawFn, max_choices: int = 3) -> Script:
    parsed = draw(st.booleans())
    num_tools = draw(st.integers(0, 2)) if parsed else 0
    reasons = parsed and draw(st.booleans())
    speaks = draw(st.booleans()) or not reasons
    channels = (*("reasoning",) * reasons, *("content",) * speaks, *range(num_tools))
    return Script(
        choices=tuple(
            Choice(
                tokens=draw(tokens(channels)),
                finish=draw(st.sampled_from(["stop", "length"])),
                stop_reason=draw(st.sampled_from([None, "END", 7])),
            )
            for _ in range(draw(st.integers(1, max_choices)))
        ),
        tools=tuple(draw(st.sampled_from(["find", "get"])) for _ in range(num_tools)),
        logprobs=draw(st.booleans()),
        token_ids=draw(st.booleans()),
        usage=draw(st.sampled_from(["", "end", "continuous"])),
        parsed=parsed,
        echo=draw(st.sampled_from(["", "", "so be it"])),
    )


def single_scripts() -> st.SearchStrategy[Script]:
    """For APIs that know one choice, and parse it."""
    return chat_scripts(max_choices=1).map(lambda script: replace(script, parsed=True, echo="", token_ids=False))


def completion_scripts() -> st.SearchStrategy[Script]:
    return st.builds(
        Script,
        choices=st.lists(
            st.builds(
                Choice,
                tokens=tokens(("content",)),
                finish=st.sampled_from(["stop", "length"]),
                stop_reason=st.sampled_from([None, "END"]),
            ),
            min_size=1,
            max_size=3,
        ).map(tuple),
        logprobs=st.booleans(),
        token_ids=st.booleans(),
        usage=st.sampled_from(["", "end", "continuous"]),
        parsed=st.just(False),
        echo=st.sampled_from(["", "so be it"]),
    )


WORDS = [" boat", "é", '"', "\\", "\n", "🦜", '"}', '{"error"', "id: 7\n", ': "x', "", "data: "]


def long_script(rng: random.Random, num_choices: int, parsed: bool, **options: Any) -> Script:
    """Thought, said, and one tool called; about 80 tokens per choice."""

    def say(channel: str | int, num_tokens: int) -> list[Token]:
        return [
            Token(id=rng.randrange(2**32), pieces=((channel, rng.choice(WORDS)),), logprob=-rng.random())
            for _ in range(num_tokens)
        ]

    parts: list[tuple[str | int, int]] = [("reasoning", 40), ("content", 60), (0, 40)] if parsed else [("content", 60)]
    choices = [
        Choice(tokens=tuple(token for channel, most in parts for token in say(channel, rng.randint(1, most))))
        for _ in range(num_choices)
    ]
    return Script(choices=tuple(choices), tools=("find",), parsed=parsed, **options)
