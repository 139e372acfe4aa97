"""How a value, or the word that was probably meant, stands in a message."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

__all__ = ("near", "plain_number", "shown")


def shown(value: object) -> str:
    """Write a value as the user would recognise it, cut to a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def near(word: str, known: list[str]) -> str:
    """Return the known word that was most likely meant; ``""`` where none is close."""
    close = difflib.get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    return next((name for name in known if close and name.lower() == close[0]), "")


def plain_number(number: float) -> str:
    """Write a number so that it can stand in a file: whole ones with all their digits, as YAML takes no 1e+06."""
    return str(int(number)) if number == int(number) else f"{number:g}"
