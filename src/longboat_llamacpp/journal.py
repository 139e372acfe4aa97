"""Weaves comment lines with token ids for the gateway into a stream of server-sent events. Pure.

llama.cpp tells no token ids in its OpenAI streams. The journal holds a checksum of each event's content in their place,
with zeros before it for tokens that made no event of their own: as many numbers as there are tokens. A response is
continued by repeating it whole, so the numbers need only show whether the repetition is the same.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

__all__ = ("DifferentResponseError", "Journal")

_MAX_ID = 2**31 - 1
_HEAD = ("id", "object", "created", "model")
_CONTENT_EVENTS = ("content_block_delta", "response.output_text.delta", "response.reasoning_text.delta")


class DifferentResponseError(Exception):
    """A repeated response differs from its beginning."""


class Journal:
    """The journal of one response.

    prior: the numbers that each choice had before, where the response is repeated
    keep_timings: whether the client asked for the times of each token
    """

    def __init__(self, prior: Sequence[Sequence[int]] = (), *, keep_timings: bool = False) -> None:
        self._prior = prior
        self._keep_timings = keep_timings
        self._partial = b""
        self._counts: dict[int, int] = {}

    def feed(self, chunk: bytes, *, is_last: bool = False) -> bytes:
        """Return the events that ``chunk`` completes, with their numbers in front; keep the rest.

        Raises DifferentResponseError where the response differs from its beginning.
        """
        chunk = self._partial + chunk
        end = len(chunk) if is_last else chunk.rfind(b"\n\n") + 2
        self._partial = chunk[max(end, 0) :] if end >= 2 else chunk
        events = chunk[:end].split(b"\n\n") if end >= 2 else []
        return b"\n\n".join(self._told(event) if event else event for event in events)

    def _told(self, event: bytes) -> bytes:
        lines = event.split(b"\n")
        at = next((at for at, line in enumerate(lines) if line.startswith(b"data: {")), None)
        if at is None:
            return event
        document = json.loads(lines[at][len(b"data: ") :])
        ids, choice = self._of_choices(document) if "choices" in document else (self._of_other(document), 0)
        lines[at] = b"data: " + _encoded(self._without_extras(document))
        counts = [self._counts.get(index, 0) for index in range(max(self._counts, default=0) + 1)]
        told = [b": ids %d %s" % (choice, ",".join(map(str, ids)).encode())] if ids else []
        return b"\n".join([*told, b"id: " + ".".join(map(str, counts)).encode(), *lines])

    def _of_choices(self, document: dict[str, Any]) -> tuple[list[int], int]:
        """Return the numbers of a chat or completion event, and its choice."""
        if not document["choices"]:
            return [], 0
        choice = document["choices"][0]
        index = choice.get("index", 0)
        content = choice.get("delta", choice.get("text"))
        if isinstance(content, dict) and content.get("role") and not content.get("content"):
            return [], index
        return self._noted(index, self._new(document, index, int(bool(content))), content), index

    def _of_other(self, document: dict[str, Any]) -> list[int]:
        """Return the number of an event of Messages or Responses; where it tells no count, it counts as one token."""
        if document.get("type") not in _CONTENT_EVENTS:
            return []
        return self._noted(0, self._new(document, 0, 1), document.get("delta"))

    def _new(self, document: dict[str, Any], index: int, untold: int) -> int:
        """Return the tokens that were made since the last event with content."""
        made = (document.get("timings") or {}).get("predicted_n")
        return made - self._counts.get(index, 0) if isinstance(made, int) else untold

    def _noted(self, index: int, new: int, content: Any) -> list[int]:
        if new <= 0:
            return []
        known = self._counts.get(index, 0)
        number = zlib.crc32(json.dumps(content, sort_keys=True).encode()) & _MAX_ID
        ids = [0] * (new - 1) + [number]
        prior = self._prior[index] if index < len(self._prior) else ()
        expected = list(prior[known : known + new])
        if expected and expected != ids[: len(expected)]:
            raise DifferentResponseError(f"choice {index} differs from its beginning after {known} tokens")
        self._counts[index] = known + new
        return ids

    def _without_extras(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the event with its head first, as the gateway reads it, and without what no client asked for."""
        if not self._keep_timings:
            document.pop("timings", None)
        head = {name: document[name] for name in _HEAD if name in document}
        return head | document


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
