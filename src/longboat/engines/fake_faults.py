"""The ways in which the fake engine fails when asked: what a fault is and how a request asks for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import orjson

__all__ = ("Fault", "FaultError", "FaultKind", "StreamBroken", "fault_from", "fault_in_header")

FaultKind = Literal["die", "hang", "slow", "break", "none"]
_KINDS = ("die", "hang", "slow", "break", "none")


class FaultError(ValueError):
    """The fault that was asked for makes no sense; the text says why."""


class StreamBroken(Exception):  # noqa: N818 - a named outcome of a request, not a mistake
    """The connection of this answer is to be closed without an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure to play.

    kind: ``die`` SIGKILLs the process; ``hang`` stops all tokens while /health goes on saying 200; ``slow`` makes
    everything ``factor`` times slower; ``break`` closes the answer's connection; ``none`` ends hang and slow.
    after_tokens: tokens of an answer that come out first.
    """

    kind: FaultKind
    after_tokens: int = 0
    factor: float = 10.0


def fault_from(value: object) -> Fault:
    """Decode ``{"kind": …, "after_tokens": …, "factor": …}``. Raises FaultError."""
    if not isinstance(value, dict):
        raise FaultError("a fault is an object with the field kind")
    unknown = set(value) - {"kind", "after_tokens", "factor"}
    if unknown:
        raise FaultError(f"unknown fault fields: {', '.join(sorted(map(str, unknown)))}")
    kind, after, factor = value.get("kind"), value.get("after_tokens", 0), value.get("factor", 10.0)
    if kind not in _KINDS:
        raise FaultError(f"fault kind {kind!r} is none of {', '.join(_KINDS)}")
    if not isinstance(after, int) or after < 0:
        raise FaultError("after_tokens is a count, 0 or more")
    if not isinstance(factor, int | float) or factor <= 0:
        raise FaultError("factor is a number above 0")
    return Fault(kind=cast("FaultKind", kind), after_tokens=after, factor=float(factor))


def fault_in_header(headers: Mapping[str, str]) -> Fault | None:
    """The fault in a ``longboat-fault`` header: a JSON object, or just the kind."""
    text = headers.get("longboat-fault")
    if text is None:
        return None
    if text in _KINDS:
        return Fault(kind=cast("FaultKind", text))
    try:
        return fault_from(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise FaultError(f"header longboat-fault is not JSON: {error}") from error
