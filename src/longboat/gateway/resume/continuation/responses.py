"""Responses streams: what a client has of a response, and the rest of it out of a new stream."""

from __future__ import annotations

import re
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

__all__ = ("DeliveredResponse", "ResponseRemainder")

_Json = dict[str, Any]
_Key = tuple[str, Any, Any]  # an event's type, content index, summary index

_ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
_FAILURES = ("response.failed", "error")
_SEQUENCE = re.compile(rb'"sequence_number": ?\d+')
_ADDED = "response.output_item.added"


class _Item:
    """What a client has of one output item.

    texts: UTF-8, by the key of the deltas that it came in; marks: number of other events, by key
    logprobs: JSON of log-probabilities as deltas tell them, each with a comma after it
    """

    __slots__ = ("call_id", "id", "kind", "logprobs", "marks", "name", "texts")

    def __init__(self, item: _Json) -> None:
        self.kind: str = item["type"]
        self.id: str | None = item.get("id")
        self.call_id: str | None = item.get("call_id")
        self.name: str | None = item.get("name")
        self.texts: dict[_Key, bytearray] = {}
        self.marks: dict[_Key, int] = {}
        self.logprobs = bytearray()


class DeliveredResponse:
    """What a client has of a response: one choice, output items in order.

    logprobs_covered: tokens of which it has log-probabilities, or never gets any; a token that ended something else may
    still begin a text
    """

    def __init__(self) -> None:
        self.ended = False
        self.head: _Json = {}
        self.marks: dict[str, int] = {}
        self.items: list[_Item] = []
        self._covered = 0
        self.logprobs_covered = 0
        self.next_sequence = 0

    def note(self, event: Event) -> None:
        if not event.data:
            return
        document = decoded(event.data)
        kind = document["type"]
        self.next_sequence = document.get("sequence_number", self.next_sequence) + 1
        self.ended |= kind in _ENDS
        if kind == _ADDED:
            self.items.append(_Item(document["item"]))
        elif "output_index" in document:
            self._note_part(self.items[document["output_index"]], document, event.position)
        else:
            self.marks[kind] = self.marks.get(kind, 0) + 1
            response = document.get("response") or {}
            self.head = self.head or {key: response[key] for key in ("id", "created_at") if key in response}

    def carried(self, choice: int, num_ids: int) -> int:
        """Never the last one: no event tells with a token's text whether it ended the response."""
        return max(min(self._covered, num_ids - 1), 0) if choice == 0 else 0

    def covered(self, choice: int) -> int:
        return self._covered

    def has_all(self, choice: int) -> bool:
        return False

    @property
    def held_bytes(self) -> int:
        return sum(len(item.logprobs) + sum(map(len, item.texts.values())) for item in self.items)

    def _note_part(self, item: _Item, document: _Json, position: tuple[int, ...]) -> None:
        key = _key(document)
        if not isinstance(document.get("delta"), str):
            item.marks[key] = item.marks.get(key, 0) + 1
            return
        item.texts.setdefault(key, bytearray()).extend(document["delta"].encode("utf-8", "surrogatepass"))
        for entry in document.get("logprobs") or ():
            item.logprobs += encoded(entry) + b","
        if position:
            self._covered = max(self._covered, position[0])
            self.logprobs_covered = max(self.logprobs_covered, position[0] - ("logprobs" not in document))


class _Progress:
    """How far the new stream has repeated one item, and which one it is for the client.

    item: None is one that the client has nothing of; num_logprobs: log-probabilities that the client was given of it
    """

    __slots__ = ("index", "item", "marks", "num_logprobs", "seen_bytes")

    def __init__(self, index: int, item: _Item | None) -> None:
        self.index = index
        self.item = item
        self.seen_bytes: dict[_Key, int] = {}
        self.marks: dict[_Key, int] = {}
        self.num_logprobs = 0

    @property
    def caught_up(self) -> bool:
        return self.has_texts and (
            self.item is None or all(self.marks.get(key, 0) >= count for key, count in self.item.marks.items())
        )

    @property
    def has_texts(self) -> bool:
        item = self.item
        return item is None or all(self.seen_bytes.get(key, 0) >= len(text) for key, text in item.texts.items())


class ResponseRemainder:
    """The rest of a response. Items of both streams belong together by type and order among those of their type."""

    def __init__(self, delivered: DeliveredResponse) -> None:
        self._delivered = delivered
        self._progress: dict[int, _Progress] = {}
        self._marks: dict[str, int] = {}
        self._own_ids: dict[str, str] = {}
        self._num_client_items = len(delivered.items)
        self._sequence = delivered.next_sequence

    @property
    def caught_up(self) -> bool:
        known = [progress for progress in self._progress.values() if progress.item is not None]
        return (
            all(self._marks.get(kind, 0) >= count for kind, count in self._delivered.marks.items())
            and len(known) == len(self._delivered.items)
            and all(progress.caught_up for progress in known)
        )

    def block(self, events: bytes) -> bytes | None:
        """Renumber one delta without log-probabilities: only its number and the id of its item may have to change."""
        name = events.find(b".delta\ndata: ")
        if name < 0 or events.find(b"\n\n", name) != len(events) - 2 or events.find(b"\n\n") < name:
            return None
        if b'"logprobs":[{' in events or not self._same_places():
            return None
        for own, first in self._own_ids.items():
            events = events.replace(own.encode(), first.encode())
        events = _SEQUENCE.sub(b'"sequence_number":%d' % self._sequence, events, 1)
        self._sequence += 1
        return events

    def _same_places(self) -> bool:
        return all(new == progress.index for new, progress in self._progress.items())

    def event(self, event: Event) -> bytes:
        document = decoded(event.data)
        kind = document["type"]
        if kind in _FAILURES or not kind.startswith("response."):
            raise ContinuationError(FAILED)
        rest = self._rest(kind, document, event.position)
        if rest is None:
            return b""
        rest["sequence_number"] = self._sequence
        self._sequence += 1
        return event_bytes(event, encoded(rest), self._delivered)

    def _rest(self, kind: str, document: _Json, position: tuple[int, ...]) -> _Json | None:
        if kind in _ENDS:
            return self._ending(document)
        if kind == _ADDED:
            return self._item_added(document)
        if "output_index" not in document:
            return self._of_response(document)
        progress = self._progress[document["output_index"]]
        if isinstance(document.get("delta"), str):
            return self._rest_of_delta(document, progress, position)
        return self._rest_of_mark(document, progress)

    def _of_response(self, document: _Json) -> _Json | None:
        kind = document["type"]
        seen = self._marks.get(kind, 0)
        self._marks[kind] = seen + 1
        if seen < self._delivered.marks.get(kind, 0):
            return None
        if isinstance(document.get("response"), dict):
            document["response"].update(self._delivered.head)
        return document

    def _ending(self, document: _Json) -> _Json:
        if not self.caught_up:
            raise ContinuationError(ENDED_EARLY)
        response = document["response"]
        response.update(self._delivered.head)
        output = response.get("output") or []
        for index, item in enumerate(output):
            self._as_client_knows(item, self._progress.get(index))
        if len(output) == len(self._progress):
            order = sorted(range(len(output)), key=lambda index: self._progress[index].index)
            response["output"] = [output[index] for index in order]
        return document

    def _item_added(self, document: _Json) -> _Json | None:
        item = document["item"]
        known = self._counterpart(item["type"])
        if known is None:
            index = self._num_client_items
            self._num_client_items += 1
            self._progress[document["output_index"]] = _Progress(index, None)
            return {**document, "output_index": index}
        if known.name != item.get("name"):
            raise ContinuationError(OTHER_TOOL)
        for own, first in ((item.get("id"), known.id), (item.get("call_id"), known.call_id)):
            if own is not None and first is not None:
                self._own_ids[own] = first
        self._progress[document["output_index"]] = _Progress(self._delivered.items.index(known), known)
        return None

    def _counterpart(self, kind: str) -> _Item | None:
        """Return the first item of this type that the client has and the new stream has not begun yet."""
        begun = [progress.item for progress in self._progress.values()]
        return next((item for item in self._delivered.items if item.kind == kind and item not in begun), None)

    def _rest_of_delta(self, document: _Json, progress: _Progress, position: tuple[int, ...]) -> _Json | None:
        key = _key(document)
        delivered = progress.item.texts.get(key, b"") if progress.item is not None else b""
        rest, progress.seen_bytes[key] = rest_of_text(document["delta"], progress.seen_bytes.get(key, 0), delivered)
        document["delta"] = rest
        if document.get("logprobs"):
            document["logprobs"] = self._new_logprobs(document["logprobs"], position)
            progress.num_logprobs += len(document["logprobs"])
        return self._placed(document, progress) if rest or document.get("logprobs") else None

    def _new_logprobs(self, entries: list[_Json], position: tuple[int, ...]) -> list[_Json]:
        """Return the entries of tokens that the client has no delta of; an event covers tokens up to its position."""
        if not position:
            return entries
        known = self._delivered.logprobs_covered - (position[0] - len(entries))
        return entries[max(known, 0) :] if self._delivered.logprobs_covered else entries

    def _rest_of_mark(self, document: _Json, progress: _Progress) -> _Json | None:
        key = _key(document)
        seen = progress.marks.get(key, 0)
        progress.marks[key] = seen + 1
        if progress.item is not None and seen < progress.item.marks.get(key, 0):
            return None
        if key[0].endswith(".done") and not progress.has_texts:
            raise ContinuationError(ENDED_EARLY)
        return self._placed(document, progress)

    def _placed(self, document: _Json, progress: _Progress) -> _Json:
        """Return the event with ids and places as the client knows them."""
        document["output_index"] = progress.index
        if document.get("item_id") in self._own_ids:
            document["item_id"] = self._own_ids[document["item_id"]]
        self._as_client_knows(document.get("item"), progress)
        _restore_logprobs(document.get("part"), progress)
        return document

    def _as_client_knows(self, item: _Json | None, progress: _Progress | None) -> None:
        if item is None:
            return
        for name in ("id", "call_id"):
            if item.get(name) in self._own_ids:
                item[name] = self._own_ids[item[name]]
        for part in item.get("content") or () if progress is not None else ():
            _restore_logprobs(part, progress)


def _restore_logprobs(part: _Json | None, progress: _Progress | None) -> None:
    """Correct the log-probabilities of a finished text part: those of tokens that its engine was given are not true."""
    if progress is None or not isinstance(part, dict) or not part.get("logprobs"):
        return
    first: list[_Json] = []
    if progress.item is not None and progress.item.logprobs:
        first = decoded(b'{"all":[' + progress.item.logprobs[:-1] + b"]}")["all"]
    own = part["logprobs"][-progress.num_logprobs :] if progress.num_logprobs else []
    part["logprobs"] = [_with_bytes(entry) for entry in first] + own


def _with_bytes(entry: _Json) -> _Json:
    """Return a delta's log-probability as finished parts tell it."""
    full = {"token": entry["token"], "bytes": list(entry["token"].encode("utf-8", "replace")), **entry}
    if "top_logprobs" in entry:
        full["top_logprobs"] = [_with_bytes(top) for top in entry["top_logprobs"] or ()]
    return full


def _key(document: _Json) -> _Key:
    return document["type"], document.get("content_index"), document.get("summary_index")
