"""Whether an engine's code looks as a change to it expects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ("UnexpectedShapeError", "expect", "expect_parameters", "tried")


class UnexpectedShapeError(Exception):
    """The engine's code is not what was expected; nothing was changed."""


def expect(condition: bool, what: str) -> None:
    """Raise UnexpectedShapeError with ``what`` where ``condition`` does not hold."""
    if not condition:
        raise UnexpectedShapeError(what)


def expect_parameters(function: Any, names: tuple[str, ...]) -> None:
    """Raise UnexpectedShapeError where the function's first parameters are not ``names``."""
    found = tuple(inspect.signature(function).parameters)[: len(names)]
    expect(found == names, f"{function.__qualname__} takes {', '.join(found)}")


def tried(*steps: Callable[[], None]) -> str:
    """Run the steps and return what went wrong in the first that failed; empty where none did."""
    try:
        for step in steps:
            step()
    except (ImportError, AttributeError, OSError, TypeError, UnexpectedShapeError) as error:
        return str(error) or type(error).__name__
    return ""
