"""Tests of how carried tokens reach the grammar of a vLLM whose scheduler asks about requests and not about tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from longboat_vllm.resume import core

END = 7
PROMPT = [1, 2]


class Reasoner:
    """Reasoning ends with a token."""

    def is_reasoning_end_streaming(self, tokens: list[int], delta: list[int]) -> bool:
        return END in delta


class Manager:
    """The grammars of vLLM 0.26: what they are asked, as far as carrying needs it."""

    def __init__(self, reasoner: Reasoner | None, *, ended: bool) -> None:
        self.reasoner, self.ended = reasoner, ended

    def _get_reasoner(self, request: Any) -> Reasoner | None:
        return self.reasoner

    def should_fill_bitmask(self, request: Any) -> bool:
        return self.ended

    def should_advance(self, request: Any) -> bool:
        raise AssertionError("it speaks of the request's last step, and there was none")

    def trim_reasoning_for_advance(self, request: Any, new_token_ids: list[int]) -> list[int]:
        raise AssertionError("it speaks of the request's last step, and there was none")


def start(prior: list[int], reasoner: Reasoner | None = None, *, ended: bool = False) -> tuple[int | None, bool]:
    """Where in ``prior`` the grammar begins, and whether the request knows that reasoning ended."""
    request = SimpleNamespace(
        all_token_ids=[*PROMPT, *prior], structured_output_request=SimpleNamespace(reasoning_ended=ended)
    )
    found = core._grammar_start(Manager)(Manager(reasoner, ended=ended), request, prior)
    return found, request.structured_output_request.reasoning_ended


def test_a_grammar_without_reasoning_takes_all_tokens() -> None:
    assert start([4, 5])[0] == 0


@pytest.mark.parametrize(
    ("prior", "ended", "found"),
    [
        ([4, 5, 6], True, (0, True)),
        ([4, END, 6], False, (2, True)),
        ([4, 5, END], False, (3, True)),
        ([4, 5, 6], False, (None, False)),
    ],
)
def test_a_grammar_begins_behind_the_token_that_ends_reasoning(
    prior: list[int], ended: bool, found: tuple[int | None, bool]
) -> None:
    assert start(prior, Reasoner(), ended=ended) == found
