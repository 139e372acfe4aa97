"""The faults that the fake engine plays on request: what a fault is and how a request asks for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import orjson

__all__ = ("OF_ONE_ANSWER", "Fault", "FaultError", "FaultKind", "StreamBroken", "fault_from", "fault_in_header")

FaultKind = Literal[
    "die",  # SIGKILLs the engine
    "hang",  # stops all tokens while /health still answers 200
    "slow",  # makes the engine ``factor`` times slower
    "none",  # ends hang and slow
    "break",  # closes the connection of one response
    "truncate",  # closes it within a chunk
    "garbage",  # closes it after bytes that are not a chunk
    "nonsense",  # closes it after an event that is not JSON
    "report",  # ends one response with an error event, as vLLM does when its core died
    "stall",  # stops one response while others continue
    "error",  # answers 500 (only in advance, by ``/fault``)
    "evict",  # evicts every idle KV block
    "lose_events",  # loses the next ``times`` KV events, and notices it at the one after (only by ``/fault``)
]
OF_ONE_ANSWER = ("break", "truncate", "garbage", "nonsense", "report", "stall", "error")
"""Faults of one response, and not of the whole engine."""


class FaultError(ValueError):
    """A malformed fault; the text says why."""


class StreamBroken(Exception):  # noqa: N818 - a named outcome of a request, not a mistake
    """A connection that must be closed without an end, after what ``last_words`` returns."""

    def __init__(self, kind: FaultKind = "break") -> None:
        super().__init__(kind)
        self.kind = kind

    def last_words(self, path: str) -> bytes:
        """Return what is still sent in a stream that answers a request for ``path``, with its framing."""
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


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One failure to play."""

    kind: FaultKind
    after_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0  # tokens of a response that are sent before it fails
    factor: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    times: Annotated[int, msgspec.Meta(ge=1)] = 1  # number of responses that fail


def fault_from(value: object) -> Fault:
    """Decode ``{"kind": …, "after_tokens": …, "factor": …, "times": …}``. Raises FaultError."""
    try:
        return msgspec.convert(value, Fault)
    except msgspec.ValidationError as error:
        raise FaultError(f"malformed fault: {error}") from error


def fault_in_header(headers: Mapping[str, str]) -> Fault | None:
    """Return the fault in a ``longboat-fault`` header: a JSON object, or just the kind. Raises FaultError."""
    text = headers.get("longboat-fault")
    if text is None:
        return None
    try:
        return fault_from(orjson.loads(text) if text.startswith("{") else {"kind": text})
    except orjson.JSONDecodeError as error:
        raise FaultError(f"header longboat-fault is not JSON: {error}") from error


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _error_event(path: str) -> bytes:
    error = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
    if path.startswith(("/v1/messages", "/v1/responses")):
        return b"event: error\ndata: " + orjson.dumps({"type": "error", "error": error}) + b"\n\n"
    return b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n"
