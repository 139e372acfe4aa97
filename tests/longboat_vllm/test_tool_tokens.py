"""Tests of vLLM's parsers of tool calls that get one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.tool_call_ends import steady_ends
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat_vllm.tool_tokens import pieces


class Tokenizer:
    """Has one token for each word; 0 is special."""

    words = ("<end>", "row", " the", " boat")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(self.words[one] for one in ids if one or not skip_special_tokens)


@pytest.mark.parametrize(
    ("ids", "text", "texts"),
    [
        ([1, 2, 3], "row the boat", ["row", " the", " boat"]),
        ([1, 0], "row<end>", ["row", "<end>"]),
        ([1, 0], "row", ["row", ""]),
        ([1, 2], "row th", None),  # a stop string may begin there
    ],
)
def test_text_is_divided_where_its_tokens_tell_it(ids: list[int], text: str, texts: list[str] | None) -> None:
    assert pieces(Tokenizer(), ids, text) == texts


class Bytes:
    """Has one token for each byte."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize(
    ("data", "text", "texts"),
    [
        ("aé🌊b".encode(), "aé🌊b", ["a", "", "é", "", "", "", "🌊", "b"]),
        ("a🌊".encode()[:-1], "a", ["a", "", "", ""]),  # the letter ends in the next delta
        ("🌊b".encode()[1:], "🌊b", ["", "", "🌊", "b"]),  # it began in the one before
        ("é".encode()[1:] + "é".encode(), "éé", ["é", "", "é"]),
    ],
)
def test_a_letter_of_several_tokens_comes_with_its_last_one(data: bytes, text: str, texts: list[str]) -> None:
    assert pieces(Bytes(), list(data), text) == texts


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python")
def test_vllms_parsers_say_the_same_words_at_each_token(vllm_node: VllmNode) -> None:
    """Without the change, all but Hermes' are unsteady, and DeepSeek's lose the end of the arguments."""
    probe = Path(__file__).with_name("tool_calls_probe.py")
    assert len(steady_ends(ENGINE_PYTHON, probe, str(vllm_node.tiny), "20")) == 4
