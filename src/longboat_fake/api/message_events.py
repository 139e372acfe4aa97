"""The stream of one Anthropic message of the fake engine: a block opens with its first word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from longboat_fake.api.generation import Update
from longboat_fake.api.requests import Choice, Request

__all__ = ("MessageEvents", "message_envelope", "message_stop", "message_usage")


def message_envelope(model: str, request: Request) -> dict[str, Any]:
    """Return a message without content."""
    return {"id": request.request_id, "type": "message", "role": "assistant", "content": [], "model": model}


def message_usage(request: Request, choice: Choice | None) -> dict[str, int]:
    """Return the usage. ``choice`` None: before its first token."""
    return {"input_tokens": request.prompt_tokens, "output_tokens": choice.num_tokens if choice else 0}


def message_stop(choice: Choice) -> dict[str, str | None]:
    """Return why the message ended, in Anthropic's terms."""
    if choice.stops.matched is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stops.matched}
    if choice.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "tool_use" if choice.tool else "end_turn", "stop_sequence": None}


class MessageEvents:
    """A writer of one message's events, in vLLM's order and shape."""

    def __init__(self, model: str, request: Request) -> None:
        self._request = request
        self._choice = request.choices[0]
        self._index = -1
        self._open = ""
        message = {**message_envelope(model, request), "stop_reason": None, "stop_sequence": None}
        self._start = [_event("message_start", message={**message, "usage": message_usage(request, None)})]

    def of(self, update: Update) -> Iterator[bytes]:
        """Yield the events of an update; those of the first begin with the message's start."""
        yield from self._begin()
        kind = "thinking" if update.is_reasoning else "tool_use" if self._choice.tool else "text"
        if not update.text:
            return
        if kind != self._open:
            yield from self._close()
            self._open, self._index = kind, self._index + 1
            yield _event("content_block_start", content_block=self._block(kind), index=self._index)
        yield _event("content_block_delta", delta=_delta(kind, update.text), index=self._index)

    def end(self) -> Iterator[bytes]:
        yield from self._begin()
        yield from self._close()
        usage = message_usage(self._request, self._choice)
        yield _event("message_delta", delta=message_stop(self._choice), usage=usage)
        yield _event("message_stop")

    def _begin(self) -> list[bytes]:
        events, self._start = self._start, []
        return events

    def _close(self) -> Iterator[bytes]:
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": self._choice.nonce}
            yield _event("content_block_delta", delta=delta, index=self._index)
        if self._open:
            yield _event("content_block_stop", index=self._index)

    def _block(self, kind: str) -> dict[str, Any]:
        if kind == "tool_use":
            return {"type": "tool_use", "id": self._choice.call_id, "name": self._choice.tool, "input": {}}
        return {"type": kind, kind: ""}


def _delta(kind: str, text: str) -> dict[str, str]:
    if kind == "tool_use":
        return {"type": "input_json_delta", "partial_json": text}
    return {"type": f"{kind}_delta", kind: text}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
