"""Checks that a replayed response repeats the tokens that it had: a client never gets the end of another response.

Where tokens are forced they are equal by themselves. An engine with speculative decoding cannot force them, and repeats
them by the same seed: then only this check knows.
"""

from __future__ import annotations

from typing import Any

from longboat_vllm.resume.carry import CarriedRequest

__all__ = ("RepeatedTokens",)


class RepeatedTokens:
    """The tokens of one request's choices so far, beside those that they had on another engine."""

    def __init__(self, request: CarriedRequest, first: int) -> None:
        self._request, self._first = request, first
        self._counts: dict[int, int] = {}
        self._is_on = request.mode == "replay"

    def check(self, output: Any, *, is_delta: bool) -> None:
        """Look at one output. Raises ValueError where a token differs. is_delta: it has new tokens only."""
        for choice in output.outputs if self._is_on else ():
            prior = self._request.prior_of(self._first + choice.index)
            start = self._counts.get(choice.index, 0) if is_delta else 0
            tokens = list(choice.token_ids)
            expected = prior[start : start + len(tokens)]
            if tokens[: len(expected)] != expected:
                raise ValueError("the repeated tokens differ from those that the response had")
            self._counts[choice.index] = start + len(tokens)
