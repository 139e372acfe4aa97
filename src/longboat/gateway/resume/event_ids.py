"""Ids of a stream's events as the gateway writes them: where in the answer an event stands."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ("MAX_CHOICES", "Point")

MAX_CHOICES: Final = 128
"""Most choices that the id of an event counts. Answers with more are not continued."""

_PLACE: Final = rb"[0-9]{1,9}(?:\+[0-9]{1,6})?"
_POSITION: Final = re.compile(rb"(%b(?:\.%b){0,%d})(?:@([0-9]{1,9}))?" % (_PLACE, _PLACE, MAX_CHOICES - 1))


class Point(NamedTuple):
    """A place in a stream."""

    places: tuple[tuple[int, int], ...]  # per choice: its tokens so far, and its events since the last of them
    sequence: int = -1  # the number that the event itself told; -1: none

    @classmethod
    def read(cls, text: bytes) -> Point | None:
        """Read a ``Last-Event-ID``; None where the gateway did not write it."""
        found = _POSITION.fullmatch(text.strip())
        if found is None:
            return None
        pairs = (one.partition(b"+") for one in found[1].split(b"."))
        places = tuple((int(tokens), int(further or 0)) for tokens, _, further in pairs)
        return cls(places, -1 if found[2] is None else int(found[2]))

    def encode(self) -> bytes:
        """Return the text for an ``id:`` line."""
        places = b".".join([b"%d+%d" % place if place[1] else b"%d" % place[0] for place in self.places])
        return places if self.sequence < 0 else b"%b@%d" % (places, self.sequence)
