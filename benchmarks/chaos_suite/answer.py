"""What an answer says, whatever ids it has and however it came in pieces; and whether a stream is one whole."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chaos_suite.answer_choices import read_choices, whole_choices
from chaos_suite.answer_items import read_messages, read_response, response_facts, whole_message
from chaos_suite.sse import ServerEvent

__all__ = ("Facts", "differences", "read_stream", "read_whole", "seed_of")

Facts = dict[str, Any]


def read_stream(path: str, events: Sequence[ServerEvent]) -> tuple[Facts, list[str]]:
    """The answer in a stream, and what makes it no whole and single one. ``[DONE]`` is an event like others."""
    documents, wrongs = [], []
    for event in events:
        if event.data == "[DONE]":
            continue
        try:
            documents.append(json.loads(event.data))
        except ValueError:
            wrongs.append(f"an event is no JSON: {event.data[:60]!r}")
    wrongs += [f"an error in the stream: {_shown(error)}" for error in map(_error, documents) if error]
    try:
        facts, more = _READERS.get(path, read_choices)(documents)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        return {}, [*wrongs, f"an event is not what it should be: {error!r}"]
    if path not in _READERS:
        wrongs += _wrong_end(events)
    return facts, wrongs + more


def read_whole(path: str, body: bytes) -> Facts:
    """The answer in a body. :raises ValueError: it is no answer"""
    document = json.loads(body)
    if path == "/v1/messages":
        return whole_message(document)
    if path == "/v1/responses":
        return response_facts(document)
    return whole_choices(document)


def differences(facts: Facts, expected: Facts) -> list[str]:
    """In words; empty: the two say the same."""
    found = []
    for place in sorted({*facts, *expected}):
        ours, theirs = facts.get(place), expected.get(place)
        if not _is_same(ours, theirs):
            found.append(_difference(place, ours, theirs))
    return found


def _is_same(ours: Any, theirs: Any) -> bool:
    """Return whether two values are equal.

    Only log-probabilities are fractions. Their last digits may differ: an engine adds up in another order when other
    requests are in its batch.
    """
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_is_same, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_is_same(value, theirs[name]) for name, value in ours.items())
    return bool(ours == theirs)


def _difference(place: str, ours: Any, theirs: Any) -> str:
    """Of long things: the first part that differs, and where that is."""
    if not (isinstance(ours, (list, str)) and type(ours) is type(theirs)):
        return f"{place}: {_shown(ours)} in place of {_shown(theirs)}"
    pairs = zip(ours, theirs, strict=False)
    at = next(
        (number for number, (our, their) in enumerate(pairs) if not _is_same(our, their)), min(len(ours), len(theirs))
    )
    width = 1 if isinstance(ours, list) else 24
    lengths = f"of {len(ours)} and {len(theirs)}"
    return f"{place}[{at}] {lengths}: {_shown(ours[at : at + width])} in place of {_shown(theirs[at : at + width])}"


def seed_of(events: Iterable[ServerEvent]) -> int | None:
    """The seed that the fake engine was given, as it tells it in its fingerprint."""
    for event in events:
        _, found, rest = event.data.partition('"fake-seed-')
        if found:
            return int(rest.partition('"')[0])
    return None


def _error(document: Mapping[str, Any]) -> Any:
    return document.get("error") if "error" in document and document.get("type") in (None, "error") else None


def _wrong_end(events: Sequence[ServerEvent]) -> list[str]:
    ends = [number for number, event in enumerate(events) if event.data == "[DONE]"]
    if ends == [len(events) - 1]:
        return []
    return ["the stream does not end in [DONE]" if not ends else "[DONE] comes more than once, or too early"]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 600 else f"{text[:290]} … {text[-290:]}"


_READERS = {"/v1/messages": read_messages, "/v1/responses": read_response}
