"""The error that names all problems of a file."""

from __future__ import annotations

from collections.abc import Sequence

from longboat.core.errors import Problem, UserInputError

__all__ = ("refusal",)


def refusal(problems: Sequence[Problem], origin: str, kind: type[UserInputError] = UserInputError) -> UserInputError:
    """Return the error that names all problems. origin: the file's name, or the command"""
    first = problems[0]
    message = f"{origin}: {first}" if len(problems) == 1 else f"{origin}: {len(problems)} problems"
    return kind(message, hint=first.hint, problems=tuple(problems))
