"""Compares what was expected to be cached at a replica with what its requests found there."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

__all__ = ("AccuracyFigures", "PrefixAccuracy")

_WINDOW: Final = 200  # requests
_LEAST: Final = 20  # requests before a verdict
_BAD_PRECISION: Final = 0.7


class AccuracyFigures(NamedTuple):
    """Sums over the last requests, and over all."""

    requests: int  # of all times, as the sums
    expected_tokens: int
    cached_tokens: int
    prompt_tokens: int
    right_tokens: int  # expected and cached
    precision: float  # in the window: the part of the expected tokens that were cached; 1 where none was expected
    recall: float  # in the window: the part of the cached tokens that were expected; 1 where none was cached


class PrefixAccuracy:
    """The accuracy of one replica's entries in the index."""

    def __init__(self, window: int = _WINDOW) -> None:
        self._window: deque[tuple[int, int]] = deque(maxlen=window)
        self._expected = self._cached = self._right = 0  # tokens in the window
        self._requests = self._all_expected = self._all_cached = self._all_prompt = self._all_right = 0

    def observe(self, expected_tokens: int, cached_tokens: int, prompt_tokens: int) -> None:
        """Take one request: what was expected to be cached, what was, and how long its prompt is."""
        right = min(expected_tokens, cached_tokens)
        if len(self._window) == self._window.maxlen:
            expected, cached = self._window[0]
            self._count(-expected, -cached, -min(expected, cached))
        self._window.append((expected_tokens, cached_tokens))
        self._count(expected_tokens, cached_tokens, right)
        self._requests += 1
        self._all_expected += expected_tokens
        self._all_cached += cached_tokens
        self._all_prompt += prompt_tokens
        self._all_right += right

    @property
    def heal(self) -> bool:
        """Whether the replica's entries should be dropped and asked for again."""
        return len(self._window) >= _LEAST and self._precision < _BAD_PRECISION

    def restart(self) -> None:
        """Begin a new window: the entries were asked for again."""
        self._window.clear()
        self._expected = self._cached = self._right = 0

    def snapshot(self) -> AccuracyFigures:
        """Return the figures."""
        return AccuracyFigures(
            self._requests, self._all_expected, self._all_cached, self._all_prompt, self._all_right,
            self._precision, self._right / self._cached if self._cached else 1.0,
        )  # fmt: skip

    @property
    def _precision(self) -> float:
        return self._right / self._expected if self._expected else 1.0

    def _count(self, expected: int, cached: int, right: int) -> None:
        self._expected += expected
        self._cached += cached
        self._right += right
