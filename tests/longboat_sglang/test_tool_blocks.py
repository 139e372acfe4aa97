"""Tests of the blocks in which SGLang's parsers of tool calls get their text."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.sglang_node import SGLANG_PYTHON
from longboat_sglang.tool_blocks import BLOCK_CHARS, Blocks

ROOT = Path(__file__).resolve().parent.parent.parent
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


def test_text_without_a_call_passes_at_once() -> None:
    blocks = Blocks()
    assert [blocks.divide(text, Detector()) for text in ("Row", " the", " boat.", "")] == [
        ["Row"], [" the"], [" boat."], [],
    ]  # fmt: skip
    assert blocks.rest() == ""


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no engine environment's Python")
def test_sglangs_parsers_say_the_same_words_at_each_point() -> None:
    """Without blocks, none does, and four have several ends: DeepSeek-V3's call loses its arguments."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SGLANG_USE_CPU_ENGINE": "1"}
    command = [str(SGLANG_PYTHON), str(Path(__file__).with_name("tool_calls_probe.py")), "20"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 8
    for name, one in found.items():
        assert one["unsteady"] == 0, (name, one)
        (end,) = one["end"]
        words = json.loads(end)
        assert words["0"][0] == "row"
        assert json.loads(words["0"][1])["o"] == {"k": True, "m": None}
        assert words[""][1] in ("Well: ", "")
