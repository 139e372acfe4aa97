"""Tests of the blocks in which SGLang's parsers of tool calls get their text."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from engines.sglang_node import SGLANG_PYTHON
from engines.tool_call_ends import steady_ends
from longboat_sglang.tool_blocks import BLOCK_CHARS, GROWTH, Blocks

TEXT = 'I row. <tool_call>\n{"name": "row", "arguments": {"a": "<b> [x] y z"}}\n</tool_call> [TOOL_CALLS] <end'


class Detector:
    """Knows where a call begins."""

    def has_tool_call(self, text: str) -> bool:
        return "<tool_call>" in text


def pieces_of(deltas: list[str]) -> list[tuple[int, list[str]]]:
    """Return the pieces that the parser has after so many characters."""
    blocks, found, place = Blocks(), list[str](), 0
    after = []
    for delta in deltas:
        found += blocks.divide(delta, Detector())
        place += len(delta)
        after.append((place, list(found)))
    after.append((-1, [*found, blocks.rest()]))
    return after


def test_call_is_divided_alike_however_its_text_arrives() -> None:
    points: dict[int, set[tuple[str, ...]]] = {}
    for seed in range(50):
        rng, deltas, start = random.Random(seed), list[str](), 0
        while start < len(TEXT):
            deltas.append(TEXT[start : start + rng.choice((1, 2, 3, 9, 30))])
            start += len(deltas[-1])
        for place, pieces in pieces_of(deltas):
            in_call = tuple(itertools.dropwhile(lambda piece: piece != "<tool_call>", pieces))
            points.setdefault(place, set()).add(in_call)
            assert TEXT.startswith("".join(pieces))
    assert all(len(pieces) == 1 for pieces in points.values())
    (whole,) = points[-1]
    assert "".join(whole) == TEXT[len("I row. ") :]
    assert {"<tool_call>", "</tool_call>", "[TOOL_CALLS]"} <= set(whole)  # never a part of a special token
    assert all(len(piece) <= BLOCK_CHARS for piece in whole if piece[0] not in "<[")


@pytest.mark.parametrize(("words", "most"), [("down the river ", 1000), ('row(\\"a\\", {x: [1, 2]})\\n', 2100)])
def test_long_calls_are_divided_into_growing_blocks_however_their_text_arrives(words: str, most: int) -> None:
    call = f'{{"name": "row", "arguments": {{"a": "{words * (8000 // len(words))}"}}}}</tool_call>'
    divisions = set()
    for seed in range(10):
        rng, blocks, found, start = random.Random(seed), Blocks(), list[str](), 0
        text = f"<tool_call>{call}"
        while start < len(text):
            end = start + rng.choice((1, 3, 9, 400))
            found += blocks.divide(text[start:end], Detector())
            start = end
        divisions.add((*found, blocks.rest()))
    (pieces,) = divisions
    assert "".join(pieces) == text
    assert len(pieces) < most
    assert all(len(piece) <= BLOCK_CHARS for piece in pieces[1:200])
    assert max(map(len, pieces)) <= len(text) // GROWTH
    is_structure = [any(sign in piece[BLOCK_CHARS:] for sign in '{}()[]"') for piece in pieces[1:-1]]
    assert not any(is_structure)


def test_text_without_a_call_passes_at_once() -> None:
    blocks = Blocks()
    assert [blocks.divide(text, Detector()) for text in ("Row", " the", " boat.", "")] == [
        ["Row"], [" the"], [" boat."], [],
    ]  # fmt: skip
    assert blocks.rest() == ""


class CountingDetector(Detector):
    """Counts the characters that it reads. For some of SGLang's parsers, a text that begins with a brace is a call."""

    def __init__(self) -> None:
        self.num_read = 0

    def has_tool_call(self, text: str) -> bool:
        self.num_read += len(text)
        return super().has_tool_call(text) or text.startswith("{")


def test_looks_for_a_call_read_a_long_text_a_bounded_number_of_times() -> None:
    num_read = []
    for number in (1000, 10_000):
        text = "row {the} <boat> [x]" * number + "<tool_call>"
        blocks, detector, found = Blocks(), CountingDetector(), list[str]()
        for start in range(0, len(text), 5):
            found += blocks.divide(text[start : start + 5], detector)
        assert "".join(found) + blocks.rest() == text
        assert found[-1] == "<tool_call>"
        num_read.append(detector.num_read)
    assert num_read[1] < 11 * num_read[0]


def test_call_in_one_long_piece_is_found_in_few_looks() -> None:
    text = "x" * 20_000 + " call:" + "y" * 20_000
    detector = CountingDetector()
    detector.has_tool_call = lambda found: CountingDetector.has_tool_call(detector, found) or "call:" in found  # type: ignore[method-assign]
    pieces = Blocks().divide(text, detector)
    assert pieces[0] == "x" * 20_000 + " call:"
    assert detector.num_read < 50 * len(text)


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no engine environment's Python")
def test_sglangs_parsers_say_the_same_words_at_each_point() -> None:
    """Without blocks, none does, and four have several ends: DeepSeek-V3's call loses its arguments."""
    probe = Path(__file__).with_name("tool_calls_probe.py")
    ends = steady_ends(SGLANG_PYTHON, probe, "20", SGLANG_USE_CPU_ENGINE="1")
    assert len(ends) == 16
    assert all(words[""][1] in ("Well: ", "") for words in ends.values())
