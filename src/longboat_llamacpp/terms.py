"""Reads the gateway's private terms of a request: journal, seed, and the tokens that a response already had. Pure.

Request headers: ``x-longboat-journal: 1`` asks for token ids in the stream, ``x-longboat-seed`` gives the seed where
the body names none, ``x-longboat-carry: LENGTH`` says that the body begins with LENGTH bytes of
``{"mode": "replay", "prior": [[id, …], …]}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ("BadTermsError", "NotContinuedError", "Terms", "read_terms")

_MAX_SEED = 2**31 - 1
_MAX_CARRY = 2**31
_NO_SEED = (None, -1)


class BadTermsError(ValueError):
    """Malformed terms of the gateway."""


class NotContinuedError(Exception):
    """The engine cannot continue this response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the gateway wants for one request."""

    body: bytes  # for llama.cpp
    journal: bool  # ids are sent before each event
    prior: tuple[tuple[int, ...], ...] = ()  # ids that each choice had before
    keep_timings: bool = False  # the client asked for the times of each token


def read_terms(headers: Mapping[str, str], body: bytes) -> Terms:
    """Return the terms of a request, and its body as llama.cpp gets it.

    Raises BadTermsError for malformed terms, NotContinuedError where the response cannot be continued.
    """
    carry = _number(headers, "x-longboat-carry", _MAX_CARRY)
    seed = _number(headers, "x-longboat-seed", _MAX_SEED)
    prior = _prior(body[:carry]) if carry is not None else ()
    body = body[carry or 0 :]
    wants = headers.get("x-longboat-journal") == "1"
    asked = _json(body) if wants or seed is not None else None
    if not isinstance(asked, dict) or not asked.get("stream"):
        return Terms(body=body, journal=False)
    keep_timings = bool(asked.get("timings_per_token"))
    if wants:
        asked["timings_per_token"] = True
    if seed is not None and asked.get("seed") in _NO_SEED:
        asked["seed"] = seed
    return Terms(body=json.dumps(asked).encode(), journal=wants, prior=prior, keep_timings=keep_timings)


def _number(headers: Mapping[str, str], name: str, limit: int) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()) or int(value) > limit:
        raise BadTermsError(f"{name} must be a whole number up to {limit}")
    return int(value)


def _prior(prefix: bytes) -> tuple[tuple[int, ...], ...]:
    carried = _json(prefix)
    prior = carried.get("prior") if isinstance(carried, dict) else None
    if not isinstance(prior, list) or not all(isinstance(ids, list) and all(map(_is_id, ids)) for ids in prior):
        raise BadTermsError("carried tokens need a list of token ids for each choice")
    if carried.get("mode") != "replay":
        raise NotContinuedError("llama.cpp repeats a response; it cannot be given the tokens before")
    return tuple(map(tuple, prior))


def _is_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
