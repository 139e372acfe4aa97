"""Gives each event of a stream an id of its own, where the engine gives one to all that have a count of tokens."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from longboat.gateway.native.leaf_work import numbered
from longboat.gateway.resume.event_ids import Point

__all__ = ("SEQUENCE", "Numbering", "choice_of", "id_of", "with_id", "with_sequence")

SEQUENCE: Final = re.compile(rb'("sequence_number": ?)([0-9]{1,9})')
_CHOICE: Final = re.compile(rb'"choices": ?\[(?:\{"index": ?([0-9]{1,4})|\])')


class Numbering:
    """Makes the ids of a stream's events differ: engines give the same to all events with one count of tokens.

    Of several choices each counts for itself, since their events come in another order when the answer is made again.
    """

    __slots__ = ("_count", "_further", "_last", "_num_choices", "_sequenced")

    def __init__(self, num_choices: int = 1, *, sequenced: bool = False) -> None:
        """sequenced: events tell numbers of their own, which are to be part of their ids."""
        self._num_choices = num_choices
        self._sequenced = sequenced
        self._last = b"" if num_choices == 1 else b".".join([b"0"] * num_choices)  # the last id of the engine
        self._count = 0  # of events that had it since the first
        self._further: dict[int, int] = {}  # the same of each of several choices

    def plain(self, events: bytes) -> tuple[bytes, bytes, int, bool] | None:
        """Return the numbered events of one choice without the engine's words to the gateway, the two arguments of
        ``went`` for when the client gets them, and whether all tell tokens. None where they are not plain."""
        if self._num_choices > 1 or self._sequenced:
            return None
        return numbered(events, self._last, self._count)

    def went(self, last: bytes, count: int) -> None:
        """Note that the client got what ``plain`` returned."""
        self._last, self._count = last, count

    def feed(self, events: bytes, *, grows: bool) -> bytes:
        """Number whole events. grows: it is one event that brings tokens, so that its id is new for one choice."""
        if grows and self._num_choices == 1:
            self._last, self._count = id_of(events), 0
            return with_sequence(events) if self._sequenced else events
        out = [self._numbered(event) for event in events.split(b"\n\n")]
        if self._sequenced:
            out = [with_sequence(event) for event in out]
        return b"\n\n".join(out)

    def passed(self, events: bytes) -> None:
        """Note events, as the engine sent them, that went to the client by another way."""
        found = id_of(events.rstrip(b"\n").rpartition(b"\n\n")[2])
        if self._num_choices == 1 and found and found != self._last:
            self._last, self._count = found, 0

    def _numbered(self, event: bytes) -> bytes:
        found, before = id_of(event), self._last
        if not found:
            return event
        if (lacking := self._num_choices - 1 - found.count(b".")) > 0:
            # SGLang and llama.cpp count the choices that have begun: a client that comes back names all of them.
            whole = found + b".0" * lacking
            event, found = event.replace(b"id: " + found, b"id: " + whole, 1), whole
        self._last = found
        if not before:
            return event
        if self._num_choices > 1 or b"." in found:
            return self._numbered_by_choice(event, found.split(b"."), before.split(b"."))
        self._count = self._count + 1 if found == before else 0
        return event.replace(b"id: " + found, b"id: %b+%d" % (found, self._count), 1) if self._count else event

    def _numbered_by_choice(self, event: bytes, counts: list[bytes], before: list[bytes]) -> bytes:
        if len(counts) != len(before):
            return event
        further = self._further
        choice = 0 if len(counts) == 1 else min(choice_of(event), len(counts) - 1)
        further[choice] = further.get(choice, 0) + 1
        for number, count in enumerate(counts):
            if count != before[number]:
                further.pop(number, None)
        if not further:
            return event
        return with_id(event, Point(tuple([(int(count), further.get(at, 0)) for at, count in enumerate(counts)])))


def id_of(event: bytes) -> bytes:
    """Return what the ``id:`` line of an event tells; b"" where it has none."""
    if event.startswith(b"id: "):
        return event[4 : event.find(b"\n")]
    at = event.find(b"\nid: ")
    return event[at + 5 : event.find(b"\n", at + 5)] if at >= 0 else b""


def with_id(event: bytes, point: Point) -> bytes:
    """Return the event under another id."""
    return event.replace(b"id: " + id_of(event), b"id: " + point.encode(), 1)


def with_sequence(event: bytes) -> bytes:
    """Return the event with its own sequence number in its id."""
    found, at = SEQUENCE.search(event), Point.read(id_of(event))
    return event if found is None or at is None else with_id(event, at._replace(sequence=int(found[2])))


def choice_of(event: bytes) -> int:
    """Return which of several choices an event is about; 0 where it is about all of them."""
    found = _CHOICE.search(event)
    if found is not None:
        return int(found[1] or 0)
    try:
        choices = msgspec.json.decode(event[event.index(b"data: ") + 6 :])["choices"]
        return int(choices[0]["index"]) if choices else 0
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return 0
