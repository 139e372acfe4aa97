"""Whether vLLM's code looks as a change to it expects."""

from __future__ import annotations

__all__ = ("UnexpectedShapeError", "expect")


class UnexpectedShapeError(Exception):
    """vLLM's code is not what was expected; nothing was changed."""


def expect(condition: bool, what: str) -> None:
    """Raise UnexpectedShapeError with ``what`` where ``condition`` does not hold."""
    if not condition:
        raise UnexpectedShapeError(what)
