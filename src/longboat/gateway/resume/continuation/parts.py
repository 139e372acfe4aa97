"""What all continued streams share: events taken apart, JSON, and text of which the client has the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from longboat.core.errors import EngineError

__all__ = (
    "DIFFERS",
    "DONE",
    "ENDED_EARLY",
    "FAILED",
    "IDS",
    "OTHER_TOOL",
    "STEPS",
    "TORN",
    "ContinuationError",
    "Delivered",
    "Event",
    "Remainder",
    "decoded",
    "encoded",
    "event_bytes",
    "event_of",
    "events_of",
    "ids_line",
    "ids_of",
    "is_own_comment",
    "rest_of_text",
)

DONE = b"[DONE]"
DIFFERS = "the new engine gave a different answer"
ENDED_EARLY = "the new engine ended before it caught up"
FAILED = "the new engine failed"
OTHER_TOOL = "the new engine called another tool"
TORN = "an engine's journal line is torn"
IDS = b": ids "
STEPS = b": steps "


class ContinuationError(EngineError):
    """Error of a new stream that does not continue what the client has, or that cannot be continued."""


class Event(NamedTuple):
    """One server-sent event.

    name: of its ``event:`` line; data: of its ``data:`` line; b"" is none
    position: tokens generated so far, per choice, of its ``id:`` line; () is none
    ids: token ids per choice that its comment lines tell
    """

    name: bytes
    data: bytes
    position: tuple[int, ...]
    ids: tuple[tuple[int, list[int]], ...]


class Delivered(Protocol):
    """What a client has of one answer, as far as that matters for its rest.

    ended: the client has the end of the answer, or an error in its place
    """

    ended: bool

    def note(self, event: Event) -> None:
        """Note that the client got this. :raises ContinuationError: it is of no known shape"""

    def carried(self, choice: int, num_ids: int) -> int:
        """Return how many of the ``num_ids`` token ids known of a choice another engine is given."""

    def covered(self, choice: int) -> int:
        """Tokens of which the client has what they say."""

    def has_all(self, choice: int) -> bool:
        """Return whether the client has the end of a choice."""

    @property
    def held_bytes(self) -> int: ...


class Remainder(Protocol):
    """Turns the events of a new, complete stream into the rest of the first one."""

    def event(self, event: Event) -> bytes:
        """Return what the client gets of one event; b"" is nothing.

        :raises ContinuationError: it contradicts what the client has
        """

    @property
    def caught_up(self) -> bool:
        """The client has nothing any more that the new stream has not repeated."""

    def block(self, events: bytes) -> bytes | None:
        """Whole events, with the engine's comments, once it caught up; None asks for them one by one."""


_DECODER = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()


def decoded(data: bytes) -> dict[str, Any]:
    """Decode the data of an event.

    :raises ContinuationError: it is not a JSON object
    """
    try:
        document = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ContinuationError(f"an event is not readable: {error}") from error
    if not isinstance(document, dict):
        raise ContinuationError("an event is not a JSON object")
    return document


def encoded(document: object) -> bytes:
    return _ENCODER.encode(document)


def is_own_comment(line: bytes) -> bool:
    """Return whether a line is one that engines write for the gateway alone."""
    return line.startswith((IDS, STEPS))


def ids_of(line: bytes) -> tuple[int, list[int]] | None:
    """Choice and token ids of a comment line; None: it tells none. :raises ValueError: it is torn."""
    if not line.startswith(IDS):
        return None
    choice, _, ids = line[len(IDS) :].partition(b" ")
    return int(choice), [int(one) for one in ids.split(b",")]


def ids_line(choice: int, ids: list[int]) -> bytes:
    """Write the comment line that tells ids."""
    return b"%b%d %b\n" % (IDS, choice, ",".join(map(str, ids)).encode())


def events_of(block: bytes) -> Iterator[Event]:
    """Return the events of a block of whole ones; those that only hold comments come with empty data.

    :raises ContinuationError: a line that engines write for the gateway is torn
    """
    if b"\r\n" in block:
        block = block.replace(b"\r\n", b"\n")
    for raw in block.split(b"\n\n"):
        if raw:
            yield event_of(raw)


def event_of(raw: bytes) -> Event:
    """:raises ContinuationError: a line that engines write for the gateway is torn"""
    name = data = b""
    position: tuple[int, ...] = ()
    ids: list[tuple[int, list[int]]] = []
    try:
        for line in raw.split(b"\n"):
            if line.startswith(b"data:"):
                data = line[5:].strip()
            elif line.startswith(b"id:"):
                position = tuple(int(one) for one in line[3:].split(b"."))
            elif line.startswith(b"event:"):
                name = line[6:].strip()
            elif (told := ids_of(line)) is not None:
                ids.append(told)
    except ValueError as error:
        raise ContinuationError(TORN) from error
    return Event(name, data, position, tuple(ids))


def event_bytes(event: Event, data: bytes, delivered: Delivered) -> bytes:
    """Write an event for the client, with an ``id:`` line where the engine wrote one: it never tells less than that."""
    head = b""
    if event.position:
        counts = (
            known if delivered.has_all(choice) else max(count, known)
            for choice, count in enumerate(event.position)
            for known in (delivered.covered(choice),)
        )
        head = b"id: %b\n" % ".".join(map(str, counts)).encode()
    if event.name:
        head += b"event: %b\n" % event.name
    return b"%bdata: %b\n\n" % (head, data)


def rest_of_text(piece: str, seen_bytes: int, delivered: bytes | bytearray) -> tuple[str, int]:
    """Return what the client lacks of a piece of text, and how many bytes of the text were seen with it.

    seen_bytes: of this text, before the piece; delivered: what the client has of it
    :raises ContinuationError: the piece is not what the client has there
    """
    raw = piece.encode("utf-8", "surrogatepass")
    end = seen_bytes + len(raw)
    if seen_bytes >= len(delivered):
        return piece, end
    overlap = min(len(raw), len(delivered) - seen_bytes)
    if delivered[seen_bytes : seen_bytes + overlap] != raw[:overlap]:
        raise ContinuationError(DIFFERS)
    if overlap == len(raw):
        return "", end
    try:
        return raw[overlap:].decode("utf-8", "surrogatepass"), end
    except UnicodeDecodeError as error:
        raise ContinuationError(DIFFERS) from error
