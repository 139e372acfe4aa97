"""The stream of one response of the fake engine: typed and numbered events, in vLLM's order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from longboat_fake.api.generation import Update
from longboat_fake.api.requests import Choice
from longboat_fake.api.response_items import item_id, item_part, response_item

__all__ = ("ResponseEvents",)

_WORDS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


class ResponseEvents:
    """A writer of one response's events, which it numbers."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._number = 0
        self._index = -1
        self._open = ""

    def start(self, document: Mapping[str, Any]) -> Iterator[bytes]:
        yield self._event("response.created", response=document)
        yield self._event("response.in_progress", response=document)

    def of(self, update: Update) -> Iterator[bytes]:
        """Yield the events of an update; none where it has no text."""
        kind = "reasoning" if update.is_reasoning else "function_call" if self._choice.tool else "message"
        if not update.text:
            return
        if kind != self._open:
            yield from self._close()
            yield from self._opening(kind)
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._event(f"{_WORDS[kind]}.delta", **self._place(), delta=update.text, **logprobs)

    def end(self, document: Mapping[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        yield self._event("response.completed", response=document)

    def _opening(self, kind: str) -> Iterator[bytes]:
        self._open, self._index = kind, self._index + 1
        item = response_item(self._choice, kind, "in_progress")
        yield self._event("response.output_item.added", item=item, output_index=self._index)
        if kind != "function_call":
            part = {**item_part(self._choice, kind), "text": ""}
            yield self._event("response.content_part.added", **self._place(), part=part)

    def _close(self) -> Iterator[bytes]:
        kind = self._open
        if not kind:
            return
        if kind == "function_call":
            fields: dict[str, Any] = {"arguments": self._choice.text, "name": self._choice.tool}
            yield self._event(f"{_WORDS[kind]}.done", **self._place(), **fields)
        else:
            part = item_part(self._choice, kind)
            fields = {"text": part["text"], **({"logprobs": []} if kind == "message" else {})}
            yield self._event(f"{_WORDS[kind]}.done", **self._place(), **fields)
            yield self._event("response.content_part.done", **self._place(), part=part)
        item = response_item(self._choice, kind, "completed")
        yield self._event("response.output_item.done", item=item, output_index=self._index)

    def _place(self) -> dict[str, Any]:
        """Return where the open item is in the response."""
        content = {} if self._open == "function_call" else {"content_index": 0}
        return {**content, "item_id": item_id(self._choice, self._open), "output_index": self._index}

    def _event(self, kind: str, **fields: Any) -> bytes:
        document = {**fields, "sequence_number": self._number, "type": kind}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(document))
