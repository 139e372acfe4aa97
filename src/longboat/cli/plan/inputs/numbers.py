"""Numbers as people write them for the options of a plan: ``1k``, ``5/s``, ``60%``."""

from __future__ import annotations

import re

import typer

__all__ = ("count", "rate", "share", "tokens")

COUNT = re.compile(r"(\d[\d_,]*(?:\.\d+)?)\s*([km]?)", re.IGNORECASE)
RATE = re.compile(r"(.+?)\s*(?:/|per\s+|rp|qp)\s*(s|sec|second|m|min|minute|h|hour)", re.IGNORECASE)
REQUESTS = re.compile(r"\s*(?:requests?|reqs?|rq)$", re.IGNORECASE)
UNITS = {"": 1, "k": 1000, "m": 10**6}
SECONDS = {"s": 1, "m": 60, "h": 3600}


def count(text: str) -> int:
    """Read ``64``, ``1,000`` or ``1.5k``. Raises BadParameter."""
    found = _number(text)
    if found is None or found != int(found):
        raise typer.BadParameter(f"{text!r} is not a whole number: write 1000 or 1k")
    return int(found)


def tokens(text: str) -> int:
    """Read ``32768`` or ``32,768``; ``32k`` may be either of two numbers. Raises BadParameter."""
    found = _number(text)
    if found is not None and text.strip()[-1:].lower() == "k":
        thousands = found / 1000
        raise typer.BadParameter(
            f"{text!r} may be {thousands * 1000:.0f} or {thousands * 1024:.0f} tokens: write which"
        )
    if found is None or found != int(found):
        raise typer.BadParameter(f"{text!r} is not a whole number of tokens: write 32768")
    return int(found)


def rate(text: str) -> float:
    """Read requests a second: ``5``, ``5/s``, ``300/min`` or ``5 requests/s``. Raises BadParameter."""
    found = RATE.fullmatch(text.strip())
    number, unit = (found[1], found[2][0].lower()) if found else (text, "s")
    value = _number(REQUESTS.sub("", number.strip()))
    if value is None:
        raise typer.BadParameter(f"{text!r} is not a number of requests a second: write 5, 5/s or 300/min")
    return value / SECONDS[unit]


def share(text: str) -> float:
    """Read ``0.6`` or ``60%``. Raises BadParameter."""
    number = text.strip()
    try:
        return float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a share: write 0.6 or 60%") from None


def _number(text: str) -> float | None:
    found = COUNT.fullmatch(text.strip())
    if found is None:
        try:
            return float(text)  # checked against the option's limits later, as -1 and 1e3 are
        except ValueError:
            return None
    return float(re.sub("[_,]", "", found[1])) * UNITS[found[2].lower()]
