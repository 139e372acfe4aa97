"""Mistakes in fields that take a value or the word ``auto``: pydantic tells them once for each of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic_core import ErrorDetails

__all__ = ("without_branches",)

WORD = "literal["
# How pydantic names the other branch: a bounded number, a section with a check of its own, a form of replicas.
VALUES = ("constrained-int", "function-wrap[", "replicas-as-")


def without_branches(errors: Iterable[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Yield what is wrong with the value, at its place in the file, without saying that it is not ``auto``."""
    for error in errors:
        path = error["loc"]
        if not (isinstance(path[-1], str) and path[-1].startswith(WORD)):
            yield {**error, "loc": tuple(part for part in path if not _is_branch(part))}


def _is_branch(part: int | str) -> bool:
    return isinstance(part, str) and part.startswith(VALUES)
