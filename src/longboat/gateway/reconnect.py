"""A client that lost its gateway comes back for the rest of its stream: what it shows, and what it is given. Pure.

Each event of a stream that an engine keeps a journal of has an id: the tokens of each choice so far (``12``, ``12.7``),
and where several events have the same count, which of them it is (``12+1``). Where events are numbered by themselves,
as in the Responses API, it tells that too (``12@9``): how many events tokens come in differs from one run to the next.
The answer's head has a token that names what is needed to make the answer again: model, revision, seed, and a digest
of the request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import NamedTuple

import msgspec

__all__ = (
    "MAX_AGE_S",
    "CrossedError",
    "Identity",
    "ItemIds",
    "Numbering",
    "Point",
    "Rest",
    "ResumeToken",
    "digest_of",
    "identity_of",
)

MAX_AGE_S = 3600.0
_MAC_BYTES = 16
_POSITION = re.compile(rb"([0-9]{1,9}(?:\.[0-9]{1,9}){0,127})(?:\+([0-9]{1,6}))?(?:@([0-9]{1,9}))?")
_ID = re.compile(rb'"id": ?"((?:chatcmpl|cmpl|resp|msg)[-_][A-Za-z0-9_\-]{1,150})"')
_ITEM_ID = re.compile(
    rb'("(?:id|item_id)": ?)"((?:msg|fc|rs|ws|ci|cu|ig|mcp|mcpl|mcpr|item|tool)_[A-Za-z0-9_\-]{4,150})"'
)
_SEQUENCE = re.compile(rb'("sequence_number": ?)([0-9]{1,9})')
_CREATED = re.compile(rb'"(created|created_at)": ?([0-9]{1,12})')
_LOOK_BYTES = 16 * 1024


class CrossedError(Exception):
    """One event of the new stream holds tokens from before and after the point. priors: tokens before the event that
    ends at the point, per choice: an engine that is given these makes a whole event of it
    """

    def __init__(self, priors: tuple[int, ...]) -> None:
        super().__init__("an event crosses the point from which the answer goes on")
        self.priors = priors


class Identity(NamedTuple):
    """By which a stream's events say that they belong together."""

    id: str = ""
    created: str = ""


def identity_of(events: bytes) -> Identity:
    """That of a stream that begins with these events; empty where they tell none."""
    events = events[:_LOOK_BYTES]
    found_id, found_created = _ID.search(events), _CREATED.search(events)
    return Identity(found_id[1].decode() if found_id else "", found_created[2].decode() if found_created else "")


class ResumeToken(msgspec.Struct, frozen=True, array_like=True):
    """What a client shows to have the rest of its answer. seed: -1 where the request names its own, or has none

    request: digest of path and body; issued_s: Unix seconds
    """

    pool: str
    revision: str
    seed: int
    request: str
    id: str
    created: str
    issued_s: int

    def encode(self, secret: str) -> bytes:
        """For a header line."""
        payload = base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=")
        return payload + b"." + _mac(payload, secret)

    @classmethod
    def decode(cls, text: bytes, secret: str, now_s: float) -> ResumeToken | None:
        """None where it is not one of ours, or too old."""
        payload, _, mac = text.strip().partition(b".")
        if not hmac.compare_digest(mac, _mac(payload, secret)):
            return None
        try:
            token = msgspec.json.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)), type=cls)
        except (msgspec.DecodeError, ValueError):
            return None
        return token if now_s - token.issued_s < MAX_AGE_S else None


class Point(NamedTuple):
    """Where a client's stream ended: tokens of each choice, and which of the events with that count it saw last.

    sequence: the number that the event itself told; -1: none
    """

    counts: tuple[int, ...]
    event: int
    sequence: int = -1

    @classmethod
    def read(cls, text: bytes) -> Point | None:
        """Of a ``Last-Event-ID``; None where it is none of ours."""
        found = _POSITION.fullmatch(text.strip())
        if found is None:
            return None
        sequence = -1 if found[3] is None else int(found[3])
        return cls(tuple(map(int, found[1].split(b"."))), int(found[2] or 0), sequence)

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)


class Numbering:
    """Makes the ids of a stream's events differ: engines give the same to all events with one count of tokens."""

    __slots__ = ("_last", "_repeats", "_sequenced")

    def __init__(self, *, sequenced: bool = False) -> None:
        """sequenced: events tell numbers of their own, which are to be part of their ids."""
        self._last = b""
        self._repeats = 0
        self._sequenced = sequenced

    def feed(self, events: bytes, *, grows: bool) -> bytes:
        """grows: it is one event that brings tokens, so its id is new already."""
        if grows:
            self._last, self._repeats = events, 0
            return _with_sequence(events) if self._sequenced else events
        numbered = [self._numbered(event) for event in events.split(b"\n\n")]
        return b"\n\n".join(map(_with_sequence, numbered) if self._sequenced else numbered)

    def passed(self, events: bytes) -> None:
        """Events went to the client; this is how the engine sent them."""
        event = events.rstrip(b"\n").rpartition(b"\n\n")[2]
        if _id_of(event) != _id_of(self._last).partition(b"+")[0]:
            self._last, self._repeats = event, 0

    def _numbered(self, event: bytes) -> bytes:
        found = _id_of(event)
        if not found:
            return event
        if found != _id_of(self._last).partition(b"+")[0]:
            self._last, self._repeats = event, 0
            return event
        self._repeats += 1
        return event.replace(b"id: " + found, b"id: %b+%d" % (found, self._repeats), 1)


class ItemIds:
    """Gives the items of a Responses stream ids that follow from the response's, so that they are the same when another
    gateway makes the answer again. Feed it the whole stream, from its start. ``call_id`` stays: engines look it up.
    """

    __slots__ = ("_given", "_response")

    def __init__(self, response: str = "") -> None:
        """response: id of the response, where it is not that of the stream."""
        self._response = response.encode()
        self._given: dict[bytes, bytes] = {}

    def feed(self, events: bytes) -> bytes:
        if not self._response:
            self._response = identity_of(events).id.encode()
        return _ITEM_ID.sub(self._renamed, events)

    def _renamed(self, found: re.Match[bytes]) -> bytes:
        given = self._given.get(found[2])
        if given is None:
            kind = found[2].partition(b"_")[0]
            digest = hashlib.blake2b(b"%b %d" % (self._response, len(self._given)), digest_size=12).hexdigest()
            given = self._given[found[2]] = b"%b_%b" % (kind, digest.encode())
        return b'%b"%b"' % (found[1], given)


class Rest:
    """Of a stream that is made again from its start: what comes after the point, under the old identity."""

    __slots__ = ("_before", "_held", "_identity", "_new", "_point", "_shift", "_through")

    def __init__(self, point: Point, identity: Identity) -> None:
        self._point = point
        self._identity = identity
        self._new: Identity | None = None
        self._before: tuple[int, ...] = (0,) * len(point.counts)
        self._held = b""
        self._through = False
        self._shift: int | None = None  # of the numbers that events tell by themselves

    def feed(self, events: bytes) -> bytes:
        """Whole numbered events; b"" while the client has all of them. :raises CrossedError: see there"""
        if not self._through:
            events = self._behind(events)
        if self._point.sequence >= 0 and events:
            events = b"\n\n".join(map(self._shifted, events.split(b"\n\n")))
        if self._new is None or not events:
            return events
        return _renamed(events, self._new, self._identity)

    def _behind(self, events: bytes) -> bytes:
        """News wait until every choice has come to the point: before that, all of it may have to be made again."""
        ended = False
        for event in filter(None, events.split(b"\n\n")):
            if self._new is None:
                self._new = identity_of(event)
            if self._through or not self._has(event):
                self._held += event + b"\n\n"
                ended = ended or not _id_of(event)
        if not self._through and not ended:
            return b""
        held, self._held = self._held, b""
        return held

    def _shifted(self, event: bytes) -> bytes:
        """The event with the number that follows those that the client has."""
        found = _SEQUENCE.search(event)
        if found is None:
            return event
        if self._shift is None:
            self._shift = self._point.sequence + 1 - int(found[2])
        if not self._shift:
            return event
        number = b"%d" % (int(found[2]) + self._shift)
        event = event[: found.start(2)] + number + event[found.end(2) :]
        place = _id_of(event)
        return event.replace(b"id: " + place, b"id: %b@%b" % (place.partition(b"@")[0], number), 1)

    def _has(self, event: bytes) -> bool:
        """Whether the client has this event."""
        at = Point.read(_id_of(event))
        if at is None or len(at.counts) != len(self._point.counts):
            return False
        counts, goal, before = at.counts, self._point.counts, self._before
        self._before = counts
        for count, end, start in zip(counts, goal, before, strict=True):
            if start < end < count:
                raise CrossedError(tuple(max(0, tokens - 1) for tokens in goal))
        changed = [i for i, count in enumerate(counts) if count != before[i]]
        if changed:
            has = all(counts[i] <= goal[i] for i in changed)
        else:
            has = all(count <= end for count, end in zip(counts, goal, strict=True))
        if has and counts == goal:
            has = at.event <= self._point.event
        self._through = not has and all(count >= end for count, end in zip(counts, goal, strict=True))
        return has


def digest_of(path: bytes, body: bytes) -> str:
    """By which a request is known again."""
    return hashlib.blake2b(body, digest_size=16, key=path[:64]).hexdigest()


def _renamed(events: bytes, new: Identity, old: Identity) -> bytes:
    if new.id and old.id:
        events = events.replace(new.id.encode(), old.id.encode())
    if new.created and old.created:
        for name in (b'"created":', b'"created_at":'):
            events = events.replace(name + new.created.encode(), name + old.created.encode())
    return events


def _with_sequence(event: bytes) -> bytes:
    found, place = _SEQUENCE.search(event), _id_of(event)
    if found is None or not place:
        return event
    return event.replace(b"id: " + place, b"id: %b@%b" % (place, found[2]), 1)


def _id_of(event: bytes) -> bytes:
    if event.startswith(b"id: "):
        return event[4 : event.find(b"\n")]
    at = event.find(b"\nid: ")
    return event[at + 5 : event.find(b"\n", at + 5)] if at >= 0 else b""


def _mac(payload: bytes, secret: str) -> bytes:
    digest = hmac.digest(b"resume " + secret.encode(), payload, "sha256")[:_MAC_BYTES]
    return base64.urlsafe_b64encode(digest).rstrip(b"=")
