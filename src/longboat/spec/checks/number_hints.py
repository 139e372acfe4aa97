"""How a number that somebody wrote as text, with a unit or in quotes, should be written."""

from __future__ import annotations

import re
from collections.abc import Mapping

from longboat.spec.checks.wording import plain_number

__all__ = ("number_hint",)

NUMBER = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{1,8}|%)?\s*", re.ASCII)

# The unit that ends a field's name: the units that people write, and what one of them is in the field's.
UNITS: Mapping[str, Mapping[str, float]] = {
    "s": {"s": 1, "sec": 1, "ms": 0.001, "m": 60, "min": 60, "h": 3600, "d": 86_400},
    "ms": {"ms": 1, "s": 1000, "sec": 1000},
}
NAMES = {"s": "seconds", "ms": "milliseconds"}


def number_hint(text: str, *, field: str, whole: bool, least: float | None = None, most: float | None = None) -> str:
    """Return the number that ``text`` means, within the field's limits; empty where it means none.

    field: the field's name, whose ending says its unit; whole: whether the field takes whole numbers only
    """
    if (found := NUMBER.fullmatch(text)) is None:
        return ""
    number, unit = float(found[1]), found[2] or ""
    if not unit:
        return f"write {_within(number, whole, least, most)} without quotes"
    ending = field.rpartition("_")[2]
    if factor := UNITS.get(ending, {}).get(unit.lower()):
        return f"write {_within(number * factor, whole, least, most)}: {field} is in {NAMES[ending]}"
    if unit == "%" and not whole:
        return f"write {_within(number / 100, whole, least, most)}"
    if unit in ("k", "K") and whole:
        if field == "context":
            return f"write {round(number * 1000)} or {round(number * 1024)} in full, whichever is meant"
        return f"write the number in full: {_within(number * 1000, whole, least, most)}"
    return ""


def _within(number: float, whole: bool, least: float | None, most: float | None) -> str:
    bounded = min(max(number, number if least is None else least), number if most is None else most)
    return f"{round(bounded)}" if whole else plain_number(bounded)
