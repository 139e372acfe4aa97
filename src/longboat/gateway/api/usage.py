"""Counts a response's tokens from what the engine reports, and removes the usage event that only the gateway wanted.

Where engines put usage (vLLM 0.32, which others follow): in ``usage`` of a whole response; in the last event of a chat,
completion or audio stream, one with ``"choices":[]``, when ``include_usage`` asks for it; in ``response.usage`` of the
event that ends a Responses stream; in ``message.usage`` of a Messages stream's first event and ``usage`` of its last
but one, both without the prompt tokens that were cached. A whole transcription reports seconds of audio instead.

A quote inside a JSON string is escaped, so ``"usage":{`` can only be the start of such an object (or of a client's own
metadata, which is why the event is decoded then).
"""

from __future__ import annotations

import enum
import math
from typing import Final, NamedTuple

from longboat.gateway.api.large_answer import LargeAnswer
from longboat.gateway.api.usage_shapes import DOCUMENT, EVENT, UNREADABLE, Event, UsageShape, seconds_of
from longboat.gateway.native.leaf_work import counts_at, events_in, named, take_usage

__all__ = ("AUDIO_TOKENS_PER_S", "AnswerKind", "Usage", "UsageReader", "take_usage_event", "usage_of_document")

AUDIO_TOKENS_PER_S: Final = 50
"""The tokens that a second of audio counts where the engine reports seconds: as many as Whisper makes of it."""
_MAX_HELD_BYTES: Final = 1024 * 1024


class AnswerKind(enum.Enum):
    """The shape of a response, by its path and content type."""

    JSON = "json"  # any response that is not a stream of events
    OPENAI_EVENTS = "openai"  # chat, completions, audio
    RESPONSES_EVENTS = "responses"
    ANTHROPIC_EVENTS = "anthropic"


_JSON: Final = AnswerKind.JSON
_LAST_USAGE: Final = {
    AnswerKind.JSON: (),
    AnswerKind.OPENAI_EVENTS: (b'"choices":[]', b'"choices": []'),
    AnswerKind.RESPONSES_EVENTS: (b'"response.completed"', b'"response.incomplete"'),
    AnswerKind.ANTHROPIC_EVENTS: (b'"message_delta"',),
}
"""What the last event with usage has, and none before it: text has no quote that is not escaped."""
_named: Final = named  # what is imported from C, compiled code would look up by its name each time
_counts_at: Final = counts_at


class Usage(NamedTuple):
    """The tokens of one response; None: unknown."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # part of ``prompt_tokens``


class UsageReader:
    """The reader of one response on its way to the client. Feed it what comes from the engine, in order."""

    __slots__ = (
        "_added",
        "_first",
        "_held",
        "_held_bytes",
        "_is_json",
        "_kind",
        "_large",
        "_last",
        "_result",
        "num_events",
    )

    def __init__(self, kind: AnswerKind, *, added: bool = False) -> None:
        self._kind = kind
        self._is_json = kind is _JSON
        self._added = added  # the gateway itself asked for the usage event, so it is removed from the stream
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._first = b""
        self._last = b""
        self._large: LargeAnswer | None = None
        self._result: Usage | None = None
        # Server-sent events so far, about one per token; for responses that end before their usage.
        self.num_events = 0

    def feed(self, block: bytes, last: bool) -> bytes:
        """Return the bytes that the client gets of this block. Blocks of streams hold whole events.

        Write nothing where the result is empty: an empty HTTP chunk would end the response.
        """
        if self._is_json:
            self._hold(block)
            return block
        num_events, tells = events_in(block)
        self.num_events += num_events
        if not tells:
            return block
        if self._added:
            taken = take_usage_event(block)
            if taken is None:
                return self._without_usage_event(block)
            self.num_events -= 1
            block, self._result = taken
            return block
        self._last = block
        if not self._first:
            self._first = block
        return block

    @property
    def is_over(self) -> bool:
        """Whether all tokens of a stream have passed: at most the mark of its end follows its last usage."""
        if self._added and self._result is not None:
            return True
        last = self._last
        return any([mark in last for mark in _LAST_USAGE[self._kind]])

    def result(self) -> Usage:
        """Return the usage that the response reported; feed nothing after the first call."""
        if self._result is None:
            self._result = self._read()
        return self._result

    def _read(self) -> Usage:
        if self._is_json:
            return usage_of_document(b"".join(self._held)) if self._large is None else _usage_of_large(self._large)
        if self._kind is AnswerKind.ANTHROPIC_EVENTS:
            return _usage_of_messages(self._first, self._last)
        return _shape(_last_usage(self._last))

    def _hold(self, block: bytes) -> None:
        """Keep the response. Once it is large, keep only what is known of it."""
        if self._large is not None:
            self._large.feed(block)
            return
        self._held.append(block)
        self._held_bytes += len(block)
        if self._held_bytes > _MAX_HELD_BYTES:
            self._large = LargeAnswer()
            self._large.feed(b"".join(self._held))
            self._held.clear()

    def _without_usage_event(self, block: bytes) -> bytes:
        separator = _separator(block)
        kept = []
        for event in block.split(separator):
            if b'"usage"' in event and _is_usage_event(event):
                self._last, self._result = event, None
                self.num_events -= 1
            else:
                kept.append(event)
        return separator.join(kept)


_UNKNOWN: Final = Usage()
_USAGE: Final = Usage


def take_usage_event(block: bytes) -> tuple[bytes, Usage] | None:
    """Return whole events without the one that reports only usage, and that usage; None where it is not plain."""
    found = take_usage(block)
    return None if found is None else (found[0], _named(_USAGE, found[1:]))


def usage_of_document(body: bytes) -> Usage:
    """Return the usage of a whole response that is not a stream."""
    found = _counts_at(body, 0)
    if found is not None and found[0] == len(body):
        return _named(_USAGE, found[2:])
    if b'"usage"' not in body and b'"duration"' not in body:
        return _UNKNOWN
    try:
        document = DOCUMENT.decode(body)
        if document.usage is None and document.duration is not None:
            return named(Usage, (_audio_tokens(seconds_of(document.duration)), None, None))
    except UNREADABLE:
        return _UNKNOWN
    return _shape(document.usage, apart=document.type == "message")


def _usage_of_large(answer: LargeAnswer) -> Usage:
    answer.end()
    return _shape(answer.usage, apart=answer.is_message)


def _event_of(event: bytes) -> Event | None:
    """Return the JSON of one server-sent event, if it is an object of known shape."""
    at = event.find(b"{")
    if at < 0:
        return None
    try:
        return EVENT.decode(event[at:])
    except UNREADABLE:
        return None


def _is_usage_event(event: bytes) -> bool:
    decoded = _event_of(event)
    return decoded is not None and decoded.usage is not None and decoded.choices == []


def _last_usage(block: bytes) -> UsageShape | None:
    for event in reversed(_decoded_events(block)):
        usage = (event.response or event).usage
        if usage is not None:
            return usage
    return None


def _usage_of_messages(first: bytes, last: bytes) -> Usage:
    """Join the first event, which reports the prompt, and the last, which reports the completion and the prompt."""
    starts = [event.message.usage for event in _decoded_events(first) if event.message is not None]
    start = _shape(starts[0] if starts else None, apart=True)
    end = _shape(_last_usage(last), apart=True)
    return Usage(
        prompt_tokens=end.prompt_tokens or start.prompt_tokens,
        completion_tokens=end.completion_tokens,
        cached_tokens=start.cached_tokens if end.cached_tokens is None else end.cached_tokens,
    )


def _decoded_events(block: bytes) -> list[Event]:
    decoded = [_event_of(event) for event in block.split(_separator(block)) if b'"usage"' in event]
    return [event for event in decoded if event is not None]


def _separator(block: bytes) -> bytes:
    return b"\n\n" if b"\n\n" in block else b"\r\n\r\n"


def _audio_tokens(seconds: float) -> int:
    return math.ceil(seconds * AUDIO_TOKENS_PER_S)


def _shape(usage: UsageShape | None, *, apart: bool = False) -> Usage:
    """Return the counts under one name each.

    apart: cached tokens are not part of ``input_tokens``, as in Anthropic's API
    """
    if usage is None:
        return _UNKNOWN
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = details.cached_tokens if details is not None else usage.cache_read_input_tokens
    prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
    if apart and prompt is not None:
        prompt += (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    if prompt is None and usage.seconds is not None:
        prompt = _audio_tokens(usage.seconds)
    completion = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    return named(Usage, (prompt, completion, cached))
