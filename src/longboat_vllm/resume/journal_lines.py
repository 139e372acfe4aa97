"""Weaves comment lines with token ids for the gateway into a stream of server-sent events."""

from __future__ import annotations

import re

from longboat_vllm.resume.carry import CarriedRequest

__all__ = ("JournalLines", "ids_lines", "steps_line")

_CHOICE = re.compile(rb'"choices": ?\[\{"index": ?(\d+)')
_FIELDS = (b"data:", b"event:")
_DONE = b"data: [DONE]"
# Events without content of a choice: its ids wait for the next event, so that ids never precede their content.
_BARE = (
    b"event: response.created",
    b"event: response.in_progress",
    b"event: message_start",
    b"event: response.output_item.added",
    b"event: response.content_part.added",
    b"event: content_block_start",
)
_ROLE = b'"role":"assistant"'
_ONLY_ROLE = re.compile(rb'"delta":\{(?:"[a-z_]+":(?:null|""|\[\]|"assistant"),?)+\}')


class JournalLines:
    """A weaver of ids into one request's stream; ``feed`` takes the engine's bytes in any pieces."""

    def __init__(self, request: CarriedRequest) -> None:
        self._request = request
        self._partial = b""

    @property
    def between_events(self) -> bool:
        """Whether a comment may be sent now."""
        return not self._partial

    def feed(self, chunk: bytes, *, is_last: bool = False) -> bytes:
        """Return the events that ``chunk`` completes, with their ids in front; keep the rest."""
        chunk = self._partial + chunk
        end = len(chunk) if is_last else chunk.rfind(b"\n\n") + 2
        if end < 2:
            self._partial = chunk
            return b""
        self._partial = chunk[end:]
        events = chunk[:end].split(b"\n\n")
        return b"\n\n".join(self._told(event) if event else event for event in events)

    def _told(self, event: bytes) -> bytes:
        if event.startswith(_DONE) or not event.startswith(_FIELDS):  # a text may hold the mark, too
            return event
        is_bare = event.startswith(_BARE) or (_ROLE in event and _ONLY_ROLE.search(event))
        lines = [] if is_bare else self._ids_of(event)
        counts = self._request.counts
        position = ".".join(str(counts.get(choice, 0)) for choice in range(max(1, self._request.num_choices)))
        return b"".join((*lines, b"id: ", position.encode(), b"\n", event))

    def _ids_of(self, event: bytes) -> list[bytes]:
        """Return lines with the ids of the event's choice, or of all choices where the event names none."""
        unsent, counts = self._request.unsent, self._request.counts
        found = _CHOICE.search(event)
        choices = [int(found[1])] if found else sorted(unsent)
        lines = []
        for choice in choices:
            if ids := unsent.pop(choice, None):
                counts[choice] = counts.get(choice, 0) + len(ids)
                lines.append(b": ids %d %s\n" % (choice, ",".join(map(str, ids)).encode()))
        return lines


def ids_lines(ids: dict[int, list[int]]) -> bytes:
    """Return comments with the ids of choices, for a non-streaming response."""
    return b"".join([b": ids %d %s\n\n" % (choice, ",".join(map(str, new)).encode()) for choice, new in ids.items()])


def steps_line(num_steps: int) -> bytes:
    """Return a comment with the engine's number of steps, for a silent stream."""
    return b": steps %d\n\n" % num_steps
