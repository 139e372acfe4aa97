"""Repeats a write of Serve's document until it is read back: the document of another command may win."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from longboat.core.errors import ClusterError

__all__ = ("until_written",)

TRIES = 3
Result = TypeVar("Result")


def until_written(attempt: Callable[[], Result | None], what: str = "this fleet") -> Result:
    """Return what ``attempt`` returns once its write holds.

    attempt: reads the document, writes it changed, and reads it back; None: another command's document won
    what: is changed, for the error

    Raises ClusterError where another command wins each time.
    """
    for _ in range(TRIES):
        if (found := attempt()) is not None:
            return found
    raise ClusterError(f"another command keeps changing {what}", hint="run the command again")
