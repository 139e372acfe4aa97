"""The ways in which the fake engine fails when asked: what a fault is and how a request asks for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

import orjson

__all__ = ("OF_ONE_ANSWER", "Fault", "FaultError", "FaultKind", "StreamBroken", "fault_from", "fault_in_header")

FaultKind = Literal[
    "die", "hang", "slow", "break", "truncate", "garbage", "nonsense", "report", "stall", "error", "none"
]
_KINDS = get_args(FaultKind)
OF_ONE_ANSWER = ("break", "truncate", "garbage", "nonsense", "report", "stall", "error")
"""Faults that an answer suffers, and not the whole engine."""

_FIELDS = {"kind", "after_tokens", "factor", "times"}


class FaultError(ValueError):
    """The fault that was asked for makes no sense; the text says why."""


class StreamBroken(Exception):  # noqa: N818 - a named outcome of a request, not a mistake
    """The connection of this answer is to be closed without an end, after what ``last_words`` says."""

    def __init__(self, kind: FaultKind = "break") -> None:
        super().__init__(kind)
        self.kind = kind

    def last_words(self, path: str) -> bytes:
        """What still goes out in a stream that answers a request for ``path``, with its framing."""
        match self.kind:
            case "truncate":
                return b'1a0\r\ndata: {"id":"chatcmpl-0","choices":[{"index":0,"del'
            case "garbage":
                return b"\x00\xff~no chunk at all~\r\n\r\n"
            case "nonsense":
                return _chunk(b'data: {"id": "cmpl-, "choices": [{]}\n\n') + _chunk(b"")
            case "report":
                return _chunk(_error_event(path)) + _chunk(b"")
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure to play.

    kind: of the engine: ``die`` SIGKILLs the process; ``hang`` stops all tokens while /health goes on saying 200;
    ``slow`` makes everything ``factor`` times slower; ``none`` ends hang and slow. Of one answer: ``break`` closes its
    connection, ``truncate`` does so within a chunk, ``garbage`` after bytes that are no chunk, ``nonsense`` after an
    event that is no JSON; ``report`` ends it with an error event, as vLLM does when its core died; ``stall`` stops it
    while others go on; ``error`` answers 500 (ahead of time only, by ``/fault``).
    after_tokens: tokens of an answer that come out first; times: answers that suffer it
    """

    kind: FaultKind
    after_tokens: int = 0
    factor: float = 10.0
    times: int = 1


def fault_from(value: object) -> Fault:
    """Decode ``{"kind": …, "after_tokens": …, "factor": …, "times": …}``. Raises FaultError."""
    if not isinstance(value, dict):
        raise FaultError("a fault is an object with the field kind")
    unknown = set(value) - _FIELDS
    if unknown:
        raise FaultError(f"unknown fault fields: {', '.join(sorted(map(str, unknown)))}")
    kind, after, factor = value.get("kind"), value.get("after_tokens", 0), value.get("factor", 10.0)
    times = value.get("times", 1)
    if kind not in _KINDS:
        raise FaultError(f"fault kind {kind!r} is none of {', '.join(_KINDS)}")
    if not isinstance(after, int) or after < 0:
        raise FaultError("after_tokens is a count, 0 or more")
    if not isinstance(times, int) or times < 1:
        raise FaultError("times is a count, 1 or more")
    if not isinstance(factor, int | float) or factor <= 0:
        raise FaultError("factor is a number above 0")
    return Fault(kind=cast("FaultKind", kind), after_tokens=after, factor=float(factor), times=times)


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


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _error_event(path: str) -> bytes:
    error = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
    if path.startswith(("/v1/messages", "/v1/responses")):
        return b"event: error\ndata: " + orjson.dumps({"type": "error", "error": error}) + b"\n\n"
    return b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n"
