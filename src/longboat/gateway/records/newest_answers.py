"""The newest responses of each model with their lengths and times: the controller looks at each of them by itself."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

__all__ = ("Answer", "NewestAnswers")

Answer = tuple[int, int, float, float | None]
"""Prompt tokens that the engine computed, tokens that it generated, seconds to the first token, and the mean time
between two tokens; None where the response was not streamed, or has several choices."""

_KEPT: Final = 32


class _Newest:
    """The newest responses of one model and class."""

    __slots__ = ("answers", "number")

    def __init__(self) -> None:
        self.number = 0  # of all responses since the process started
        self.answers: deque[Answer] = deque(maxlen=_KEPT)


class NewestAnswers:
    """The newest responses of one process, by the requested model and the priority class."""

    __slots__ = ("_newest", "is_on")

    def __init__(self) -> None:
        self.is_on = False  # whether a number of replicas follows from them
        self._newest: dict[tuple[str, int], _Newest] = {}

    def add(self, model: str, priority: int, answer: Answer) -> None:
        """Note a response that ended."""
        newest = self._newest.get((model, priority))
        if newest is None:
            newest = self._newest[model, priority] = _Newest()
        newest.number += 1
        newest.answers.append(answer)

    def by_model(self) -> dict[str, dict[str, Any]]:
        """Return for each model and class the number of responses and the newest of them, oldest first."""
        found: dict[str, dict[str, Any]] = {}
        for (model, priority), newest in self._newest.items():
            classes = found.setdefault(model, {})
            classes[str(priority)] = {"number": newest.number, "newest": [list(one) for one in newest.answers]}
        return found
