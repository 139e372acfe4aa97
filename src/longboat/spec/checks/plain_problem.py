"""What a validator found in a small file, as a problem with a hint: the hosts file and the cluster file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longboat.core.errors import Problem
from longboat.spec.checks.mistakes import basic_problem
from longboat.spec.checks.wording import near, shown
from longboat.spec.text.location import section_of, show

__all__ = ("plain_problem",)


def plain_problem(
    error: Any, fields: Mapping[tuple[str, ...], Sequence[str]], missing: Mapping[str, str], hint: str
) -> Problem:
    """Return the problem of one of pydantic's errors.

    fields: section → the names of its fields; missing: field → what to write where it is missing; hint: for the rest
    """
    path, kind, value = error["loc"], error["type"], error["input"]
    section, where = section_of(path[:-1]), show(path)
    if kind == "extra_forbidden":
        known = list(fields.get(section, ()))
        close = near(str(path[-1]), known)
        told = f"write {close}" if close else f"known here: {', '.join(known)}"
        return Problem(where=where, what=f"there is no field {str(path[-1])!r} here", hint=told)
    if kind == "missing":
        told = missing.get(str(path[-1]), f"write {path[-1]}")
        return Problem(where=where, what=f"{path[-1]} is missing", hint=told)
    if kind == "too_short" and not value:
        return Problem(where=where, what="it is empty", hint=missing.get(str(path[-1]), hint))
    if "hint" in (context := error.get("ctx", {})):
        return Problem(where=where, what=context["what"], hint=context["hint"])
    return basic_problem(error, where) or Problem(where=where, what=f"{shown(value)}: {error['msg']}", hint=hint)
