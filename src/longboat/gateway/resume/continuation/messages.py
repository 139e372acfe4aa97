"""Anthropic Messages streams: what a client has of a message, and the rest of it out of a new stream."""

from __future__ import annotations

from typing import Any

from longboat.gateway.resume.continuation.parts import (
    ENDED_EARLY,
    FAILED,
    OTHER_TOOL,
    ContinuationError,
    Event,
    decoded,
    encoded,
    event_bytes,
    rest_of_text,
)

__all__ = ("DeliveredMessage", "MessageRemainder")

_Json = dict[str, Any]
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class _Block:
    """What a client has of one content block. text: UTF-8; marks: other deltas, by type"""

    __slots__ = ("kind", "marks", "name", "stopped", "text")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name
        self.text = bytearray()
        self.marks: dict[str, int] = {}
        self.stopped = False


class DeliveredMessage:
    """What a client has of a message: one choice, content blocks in order."""

    def __init__(self) -> None:
        self.ended = False
        self.started = False
        self.has_end = False
        self.blocks: list[_Block] = []
        self._told = 0

    def note(self, event: Event) -> None:
        if not event.data:
            return
        self._told = max(self._told, *event.position[:1], 0)
        document = decoded(event.data)
        kind = document.get("type")
        if kind == "message_start":
            self.started = True
        elif kind == "content_block_start":
            block = document["content_block"]
            self.blocks.append(_Block(block["type"], block.get("name")))
        elif kind == "content_block_delta":
            _note_delta(self.blocks[document["index"]], document["delta"])
        elif kind == "content_block_stop":
            self.blocks[document["index"]].stopped = True
        elif kind == "message_delta":
            self.has_end = True
        else:
            self.ended |= kind in ("message_stop", "error")

    def carried(self, choice: int, num_ids: int) -> int:
        """Return all but the last: no event tells with a token's text whether it ended the message."""
        return max(num_ids - 1, 0) if choice == 0 else 0

    def covered(self, choice: int) -> int:
        return self._told

    def has_all(self, choice: int) -> bool:
        return self.has_end

    @property
    def held_bytes(self) -> int:
        return sum(len(block.text) for block in self.blocks)


def _note_delta(block: _Block, delta: _Json) -> None:
    field = _TEXTS.get(delta["type"])
    if field is not None:
        block.text.extend(delta[field].encode("utf-8", "surrogatepass"))
    else:
        block.marks[delta["type"]] = block.marks.get(delta["type"], 0) + 1


class _Progress:
    """How far the new stream has repeated one block, and which one it is for the client. block: None is a new one"""

    __slots__ = ("block", "index", "marks", "seen_bytes", "stopped")

    def __init__(self, index: int, block: _Block | None) -> None:
        self.index = index
        self.block = block
        self.seen_bytes = 0
        self.marks: dict[str, int] = {}
        self.stopped = False

    @property
    def caught_up(self) -> bool:
        block = self.block
        return block is None or (
            self.seen_bytes >= len(block.text)
            and self.stopped >= block.stopped
            and all(self.marks.get(kind, 0) >= count for kind, count in block.marks.items())
        )


class MessageRemainder:
    """The rest of a message. Blocks of both streams belong together by type and order among those of their type:
    parsers that are given many tokens at once may put text before a tool call where it was after it.
    """

    def __init__(self, delivered: DeliveredMessage) -> None:
        self._delivered = delivered
        self._progress: dict[int, _Progress] = {}
        self._num_client_blocks = len(delivered.blocks)

    @property
    def caught_up(self) -> bool:
        if self._delivered.has_end:
            return False
        known = [progress for progress in self._progress.values() if progress.block is not None]
        return len(known) == len(self._delivered.blocks) and all(progress.caught_up for progress in known)

    def block(self, events: bytes) -> bytes | None:
        same_blocks = all(new == progress.index for new, progress in self._progress.items())
        if not self._progress or not same_blocks or len(self._progress) != self._num_client_blocks:
            return None
        return None if b"event: error" in events else events

    def event(self, event: Event) -> bytes:
        document = decoded(event.data)
        kind = document.get("type")
        if kind == "error":
            raise ContinuationError(FAILED)
        if kind == "message_start":
            rest = None if self._delivered.started else document
        elif kind in ("message_delta", "message_stop"):
            rest = self._ending(document)
        elif self._delivered.has_end:
            rest = None
        elif kind == "content_block_start":
            rest = self._block_start(document)
        elif kind == "content_block_delta":
            rest = _rest_of_delta(document, self._progress[document["index"]])
        elif kind == "content_block_stop":
            rest = _rest_of_stop(document, self._progress[document["index"]])
        else:
            rest = document
        return b"" if rest is None else event_bytes(event, encoded(rest), self._delivered)

    def _ending(self, document: _Json) -> _Json | None:
        if self._delivered.has_end:
            return document if document["type"] == "message_stop" else None
        if not self.caught_up:
            raise ContinuationError(ENDED_EARLY)
        return document

    def _block_start(self, document: _Json) -> _Json | None:
        content = document["content_block"]
        block = self._counterpart(content["type"])
        if block is None:
            index = self._num_client_blocks
            self._num_client_blocks += 1
            self._progress[document["index"]] = _Progress(index, None)
            return {**document, "index": index}
        if block.name != content.get("name"):
            raise ContinuationError(OTHER_TOOL)
        self._progress[document["index"]] = _Progress(self._delivered.blocks.index(block), block)
        return None

    def _counterpart(self, kind: str) -> _Block | None:
        """Return the first block of this type that the client has and the new stream has not begun yet."""
        begun = [progress.block for progress in self._progress.values()]
        return next((block for block in self._delivered.blocks if block.kind == kind and block not in begun), None)


def _rest_of_delta(document: _Json, progress: _Progress) -> _Json | None:
    delta = document["delta"]
    field = _TEXTS.get(delta["type"])
    block = progress.block
    if block is None:
        return {**document, "index": progress.index}
    if field is None:
        seen = progress.marks.get(delta["type"], 0)
        progress.marks[delta["type"]] = seen + 1
        return None if seen < block.marks.get(delta["type"], 0) else {**document, "index": progress.index}
    rest, progress.seen_bytes = rest_of_text(delta[field], progress.seen_bytes, block.text)
    return {**document, "index": progress.index, "delta": {**delta, field: rest}} if rest else None


def _rest_of_stop(document: _Json, progress: _Progress) -> _Json | None:
    progress.stopped = True
    if not progress.caught_up:
        raise ContinuationError(ENDED_EARLY)
    if progress.block is not None and progress.block.stopped:
        return None
    return {**document, "index": progress.index}
