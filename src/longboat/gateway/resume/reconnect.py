"""Clients that lost their gateway and come back for the remainder of a stream: their tokens, and what they get. Pure.

Each event of a stream that an engine keeps a journal of has an id: the tokens of each choice so far (``12``, ``12.7``),
each followed by the number of events of that choice since (``12+1``, ``12.7+2``). Where events have numbers of their
own, as in the Responses API, the id tells that too (``12@9``), since the same tokens come in more or fewer events from
one run to the next. The answer's head has a token that names what is needed to make the answer again: model, revision,
seed, and a digest of the request.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from longboat.gateway.resume.event_ids import Point
from longboat.gateway.resume.numbering import SEQUENCE, choice_of, id_of, with_id, with_sequence

__all__ = (
    "MAX_AGE_S",
    "ClientRemainder",
    "CrossedError",
    "Identity",
    "ItemIds",
    "ResumeToken",
    "identity_of",
)

MAX_AGE_S = 3600.0
_MAC_BYTES = 16
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_ID = re.compile(rb'"id": ?"((?:chatcmpl|cmpl|resp|msg)[-_][A-Za-z0-9_\-]{1,150}|[0-9a-f]{32})"')
"""SGLang's chat and completion ids are plain UUIDs."""
_ITEM_ID = re.compile(
    rb'("(?:id|item_id)": ?)"((?:msg|fc|rs|ws|ci|cu|ig|mcp|mcpl|mcpr|item|tool)_[A-Za-z0-9_\-]{4,150})"'
)
_ADDED = b'"response.output_item.added"'
_WHOLE_RESPONSE = b'"response":'
_CREATED = re.compile(rb'"(created|created_at)": ?([0-9]{1,12})')
_LOOK_BYTES = 16 * 1024


class CrossedError(Exception):
    """One event of the new stream holds tokens from before and after the point."""

    def __init__(self, priors: tuple[int, ...]) -> None:
        super().__init__("an event crosses the point from which the answer goes on")
        self.priors = priors  # per choice: an engine that is given these tokens ends an event at the point


class Identity(NamedTuple):
    """The values by which a stream's events say that they belong together."""

    id: str = ""
    created: str = ""


def identity_of(events: bytes) -> Identity:
    """Return the identity of a stream that begins with these events; empty where they tell none."""
    events = events[:_LOOK_BYTES]
    found_id, found_created = _ID.search(events), _CREATED.search(events)
    return Identity(found_id[1].decode() if found_id else "", found_created[2].decode() if found_created else "")


class ResumeToken(msgspec.Struct, frozen=True, array_like=True):
    """What a client shows to get the remainder of its answer."""

    pool: str
    revision: str
    seed: int  # -1 where the request names its own, or has none
    request: str  # digest of path and body
    id: str
    created: str
    issued_s: int  # Unix time

    def encode(self, secret: str) -> bytes:
        """Return the text for a header line."""
        payload = binascii.b2a_base64(msgspec.json.encode(self), newline=False).rstrip(b"=").translate(_URL_SAFE)
        return b"%b.%b" % (payload, _mac(payload, secret))

    @classmethod
    def decode(cls, text: bytes, secret: str, now_s: float) -> ResumeToken | None:
        """Read a token; None where no gateway of this fleet made it, or it is too old."""
        payload, _, mac = text.strip().partition(b".")
        if not hmac.compare_digest(mac, _mac(payload, secret)):
            return None
        try:
            token = msgspec.json.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)), type=cls)
        except (msgspec.DecodeError, ValueError):
            return None
        return token if now_s - token.issued_s < MAX_AGE_S else None


class ItemIds:
    """Gives the items of a Responses stream ids that follow from the response's, so that they are the same when another
    gateway makes the answer again. Feed it the whole stream, from its start. ``call_id`` stays: engines look it up. So
    does what the response repeats of its request: an item's id comes first with the item, or with a part of it.
    """

    __slots__ = ("_given", "_response")

    def __init__(self, response: str = "") -> None:
        """response: id of the response, where it is not that of the stream."""
        self._response = response.encode()
        self._given: dict[bytes, bytes] = {}

    def feed(self, events: bytes) -> bytes:
        """Return the events with the ids of their items replaced."""
        if not self._response:
            self._response = identity_of(events).id.encode()
        return b"\n\n".join(map(self._with_given, events.split(b"\n\n")))

    def _with_given(self, event: bytes) -> bytes:
        if _ADDED in event:
            self._learn(_item_of(event))
        elif _WHOLE_RESPONSE not in event:
            for found in _ITEM_ID.finditer(event):
                if found[1].startswith(b'"item_id"'):
                    self._learn(found[2])
        return _ITEM_ID.sub(self._renamed, event)

    def _learn(self, item: bytes) -> None:
        if item and item not in self._given:
            kind = item.partition(b"_")[0]
            digest = hashlib.blake2b(b"%b %d" % (self._response, len(self._given)), digest_size=12).hexdigest()
            self._given[item] = b"%b_%b" % (kind, digest.encode())

    def _renamed(self, found: re.Match[bytes]) -> bytes:
        given = self._given.get(found[2])
        return found[0] if given is None else b'%b"%b"' % (found[1], given)


class _Item(msgspec.Struct, frozen=True):
    id: str = ""


class _Added(msgspec.Struct):
    type: str = ""
    item: _Item = _Item()


_ADDED_DECODER = msgspec.json.Decoder(_Added)


def _item_of(event: bytes) -> bytes:
    """Return the id of the item that an event adds; empty where it adds none."""
    start = event.find(b"{")
    try:
        added = _ADDED_DECODER.decode(event[start : event.rfind(b"}") + 1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b""
    return added.item.id.encode() if b'"%b"' % added.type.encode() == _ADDED else b""


class ClientRemainder:
    """What comes after a point of a stream that is made again from its start, under the old identity."""

    __slots__ = ("_before", "_held", "_identity", "_new", "_point", "_shift", "_through", "_told")

    def __init__(self, point: Point, identity: Identity, told: Sequence[int] = ()) -> None:
        """point: without places where the client has nothing

        told: tokens per choice that the engine tells before any other, so that no event has words of both
        """
        self._point = point
        self._identity = identity
        self._told = tuple(told) if len(told) == len(point.places) else (-1,) * len(point.places)
        self._new = Identity()
        self._before = Point(((0, 0),) * len(point.places))
        self._held: list[bytes] = []
        self._through = not point.places
        self._shift: int | None = None  # of the numbers that events tell by themselves

    def feed(self, events: bytes) -> bytes:
        """Return what the client lacks of whole numbered events; b"" while it has all. :raises CrossedError:"""
        if not self._new.id:
            self._new = identity_of(events)
        if not self._through:
            events = self._behind(events)
        if not events:
            return b""
        if self._point.sequence >= 0:
            events = b"\n\n".join(map(self._shifted, events.split(b"\n\n")))
        return _renamed(events, self._new, self._identity)

    def _behind(self, events: bytes) -> bytes:
        """Hold new events back until every choice has come to the point: until then the stream may be made again."""
        ended = False
        for event in filter(None, events.split(b"\n\n")):
            news = self._rest_of(event)
            if news is not None:
                self._held += (news, b"\n\n")
                ended = ended or not id_of(news)
        if not self._through and not ended:
            return b""
        held, self._held = self._held, []
        return b"".join(held)

    def _rest_of(self, event: bytes) -> bytes | None:
        """Return what the client lacks of an event; None where it has the event."""
        at = None if self._through else Point.read(id_of(event))
        if at is None or len(at.places) != len(self._point.places):
            return event
        places, goal, before = at.places, self._point.places, self._before.places
        self._before = at
        for (tokens, _), (end, _), (start, _), told in zip(places, goal, before, self._told, strict=True):
            # An engine that reported all up to the point, and made no event of the last tokens, held their words back,
            # as it did when the client got the point: a parser waits for what follows a space.
            if start < end < tokens and told != end:
                raise CrossedError(tuple(max(0, tokens - 1) for tokens, _ in goal))
        reached = tuple(map(max, places, goal))
        self._through = reached == places
        choice = 0 if len(places) == 1 else min(choice_of(event), len(places) - 1)
        if places[choice] <= goal[choice]:
            return None
        return event if self._through else with_id(event, Point(reached, at.sequence))

    def _shifted(self, event: bytes) -> bytes:
        """Return the event with the number that follows those that the client has."""
        found = SEQUENCE.search(event)
        if found is None:
            return event
        if self._shift is None:
            self._shift = self._point.sequence + 1 - int(found[2])
        if not self._shift:
            return event
        number = int(found[2]) + self._shift
        return with_sequence(b"%b%d%b" % (event[: found.start(2)], number, event[found.end(2) :]))


def _renamed(events: bytes, new: Identity, old: Identity) -> bytes:
    if new.id and old.id:
        events = events.replace(new.id.encode(), old.id.encode())
    if new.created and old.created:
        for name in (b'"created":', b'"created_at":'):
            events = events.replace(name + new.created.encode(), name + old.created.encode())
    return events


def _mac(payload: bytes, secret: str) -> bytes:
    """Return a keyed BLAKE2b, which is a MAC by itself (RFC 7693, section 2.9) and costs a tenth of an HMAC."""
    return hashlib.blake2b(payload, digest_size=_MAC_BYTES, key=_key_of(secret)).hexdigest().encode()


@functools.lru_cache(maxsize=8)
def _key_of(secret: str) -> bytes:
    return hashlib.blake2b(secret.encode(), person=b"longboat resume").digest()
