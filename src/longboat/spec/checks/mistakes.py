"""pydantic's errors as Problems: path as written, the value, the limit, and the nearest thing that works."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import ErrorDetails

from longboat.core.errors import Problem
from longboat.spec.checks.number_hints import number_hint
from longboat.spec.checks.unknown_fields import hint_for, limits_of
from longboat.spec.checks.wording import near, plain_number, shown
from longboat.spec.text.location import Path, section_of, show
from longboat.spec.types.fleet import API_VERSION
from longboat.spec.types.section import LATER, MISTAKE

__all__ = ("basic_problem", "is_consequence", "problem_of")

EXPECTED: Mapping[str, tuple[str, str]] = {
    "int_type": ("a whole number", "write a number without quotes and without a unit"),
    "int_from_float": ("a whole number", "write a number without a decimal point"),
    "float_type": ("a number", "write a number without quotes and without a unit"),
    "string_type": ("text", "put it in quotes"),
    "bool_type": ("true or false", "write true or false"),
    "tuple_type": ("a list", "write it in brackets: [...]"),
    "dict_type": ("a mapping", "write it as key: value lines"),
    "finite_number": ("a finite number", "write a number with digits"),
    "model_type": ("a mapping", "write it as key: value lines"),
}

NUMBERS = ("int_type", "float_type")

BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than_equal": ("less than the smallest allowed", "ge"),
    "greater_than": ("not more than the limit", "gt"),
    "less_than_equal": ("more than the limit", "le"),
}


def problem_of(error: ErrorDetails, sugar: Mapping[Path, Path]) -> Problem:
    """Make one problem. ``sugar``: where a value stands that was written in short form."""
    path, kind = error["loc"], error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    where = show(_as_written(path, sugar))
    if kind in (MISTAKE, LATER):
        return Problem(where=where, what=context["what"], hint=context["hint"])
    if kind == "extra_forbidden":
        return _unknown_field(path, where)
    if kind == "missing":
        return _missing(path, where)
    return basic_problem(error, where) or _other(error, where, context)


def is_consequence(error: ErrorDetails) -> bool:
    """Return whether a list is "too short" only because pydantic does not count its bad entries."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def basic_problem(error: ErrorDetails, where: str) -> Problem | None:
    """Return the problem of a value with a wrong type, out of bounds, or not among its choices; None for others."""
    path, kind, value = error["loc"], error["type"], error["input"]
    context: dict[str, Any] = error.get("ctx", {})
    if kind == "literal_error":
        return _not_one_of(value, path, where, context["expected"])
    if kind in BOUNDS:
        text, key = BOUNDS[kind]
        limit = plain_number(context[key])
        hint = f"write {'more than ' if key == 'gt' else ''}{limit}"
        return Problem(where=where, what=f"{shown(value)} is {text}, {limit}", hint=hint)
    return _wrong_type(kind, value, path, where) if kind in EXPECTED else None


def _as_written(path: Path, sugar: Mapping[Path, Path]) -> Path:
    for length in range(len(path), 0, -1):
        if (written := sugar.get(path[:length])) is not None:
            return written
    return path


def _unknown_field(path: Path, where: str) -> Problem:
    section, word = section_of(path[:-1]), str(path[-1])
    return Problem(where=where, what=f"there is no field {word!r} here", hint=hint_for(section, word))


def _missing(path: Path, where: str) -> Problem:
    field = str(path[-1])
    hints = {
        "models": "write models: [builtin:tiny]",
        "certificate": "write certificate: /etc/longboat/tls.crt, the PEM file that belongs to the key",
        "key": "write key: /etc/longboat/tls.key, the PEM file that belongs to the certificate",
        "to": "write to: NAME, the model that gets these requests",
        "source": "write source: builtin:tiny, /a/folder or hf:org/name",
        "urls": "write urls: [https://api.example.com/v1]",
        "max": "write max: 8, the number of replicas that there may be",
        "cron": 'write when it begins: cron: "0 8 * * MON-FRI"',
        "input_per_million": "write what a million prompt tokens cost: input_per_million: 0.5",
        "output_per_million": "write what a million completion tokens cost: output_per_million: 1.5",
        "name": "give the model a name: the source has no letters that could stand in a URL",
    }
    return Problem(where=where, what=f"{field} is missing", hint=hints.get(field, f"write {field}"))


def _not_one_of(value: object, path: Path, where: str, expected: str) -> Problem:
    choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
    close = near(value, choices) if isinstance(value, str) else ""
    if path == ("apiVersion",):
        hint = f"write apiVersion: {API_VERSION}, or leave it out"
    else:
        hint = f"write {close}" if close else f"write one of: {', '.join(choices)}"
    return Problem(where=where, what=f"{shown(value)} is not one of: {', '.join(choices)}", hint=hint)


def _wrong_type(kind: str, value: object, path: Path, where: str) -> Problem:
    expected, hint = EXPECTED[kind]
    if kind == "string_type" and isinstance(value, bool | int | float):
        hint = f'put it in quotes: "{shown(value)}"'
    elif kind in NUMBERS and isinstance(value, str) and (close := _number_hint(kind, value, path)):
        hint = close
    elif kind in ("int_type", "int_from_float") and isinstance(value, float) and math.isfinite(value):
        hint = f"write {round(value)}"
    elif path == ("models",) and isinstance(value, str):
        hint = f"write models: [{value}]"
    elif section_of(path) == ("models",) and len(path) == 2:
        expected, hint = "a model", "write its source (builtin:tiny), or a mapping with source: in it"
    elif path == ("models",):
        hint = "write models: [builtin:tiny], or a list of mappings that start with '- source: ...'"
    elif value is None:
        hint = f"{hint}, or leave the field out"
    elif path and path[-1] in ("split", "replicas", "tensor", "pipeline") and isinstance(value, str):
        hint = "write split: {tensor: 2}, or auto" if path[-1] == "split" else "write a number, or auto"
    return Problem(where=where, what=f"{shown(value)} is not {expected}", hint=hint)


def _number_hint(kind: str, value: str, path: Path) -> str:
    """Return how a number that was written as text should be written; empty where the text holds none."""
    field = next((part for part in reversed(path) if isinstance(part, str)), "")
    least, most = limits_of(section_of(path)[:-1], field)
    return number_hint(value, field=field, whole=kind == "int_type", least=least, most=most)


def _other(error: ErrorDetails, where: str, context: Mapping[str, Any]) -> Problem:
    if error["type"] == "string_too_short":
        return Problem(where=where, what="the text is empty", hint="write at least one character")
    if error["type"] in ("too_long", "too_short"):
        limit = context.get("max_length", context.get("min_length"))
        is_few = error["type"] == "too_short"
        bound = f"at {'least' if is_few else 'most'} {limit}"
        what = f"it has {context['actual_length']} entries, {bound} {'is needed' if is_few else 'are allowed'}"
        is_empty_fleet = error["loc"] == ("models",) and is_few
        return Problem(
            where=where, what=what, hint="write models: [builtin:tiny]" if is_empty_fleet else f"write {bound}"
        )
    return Problem(
        where=where, what=f"{shown(error['input'])}: {error['msg']}", hint="see docs/reference/fleet-file.md"
    )
