"""The rest of a chat or completion stream out of a new stream."""

from __future__ import annotations

from typing import Any

from longboat.gateway.resume.continuation.choices import DeliveredChoice, DeliveredChoices, line_of, lists_of, texts_of
from longboat.gateway.resume.continuation.parts import (
    DONE,
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

__all__ = ("ChoicesRemainder",)

_Json = dict[str, Any]
_ERROR = b'data: {"error"'


class _Progress:
    """How far the new stream has repeated one choice: bytes of each text, entries of each list."""

    __slots__ = ("arguments", "caught_up", "lists", "shift", "texts")

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.arguments: dict[int, int] = {}
        self.lists: dict[str, int] = {}
        self.shift: int | None = None
        self.caught_up = False


class ChoicesRemainder:
    """The rest of a chat or completion stream.

    delivered: what the client has when it begins; not changed meanwhile, until it caught up
    """

    def __init__(self, delivered: DeliveredChoices) -> None:
        self._delivered = delivered
        self._progress = {index: _Progress() for index in delivered.choices}
        self._behind = set(self._progress)
        self._old_line = b"data: " + delivered.line
        self._new_line = b""
        self._shifts = False

    @property
    def caught_up(self) -> bool:
        return not self._behind

    def block(self, events: bytes) -> bytes | None:
        line = self._new_line
        if not line or self._shifts or line not in events or b'"system_fingerprint"' in events or _ERROR in events:
            return None
        return events.replace(line, self._old_line)

    def event(self, event: Event) -> bytes:
        if event.data == DONE:
            return self._done(event)
        document = decoded(event.data)
        choices = document.get("choices")
        if "error" in document or not isinstance(choices, list):
            raise ContinuationError(FAILED)
        if not self._new_line and self._old_line != b"data: ":
            self._new_line = b"data: " + line_of(event.data)
        if choices:
            kept = [rest for choice in choices if (rest := self._choice(choice, event.position)) is not None]
            if not kept:
                return b""
            document["choices"] = kept
        elif self._delivered.has_usage or self._behind:
            return self._repeated_usage()
        else:
            self._correct(document.get("usage") or {}, event.position)
        document.update(
            (key, value)
            for key, value in self._delivered.head.items()
            if key != "system_fingerprint" or document.get(key) is not None
        )
        return event_bytes(event, encoded(document), self._delivered)

    def _done(self, event: Event) -> bytes:
        if self._behind:
            raise ContinuationError(ENDED_EARLY)
        return event_bytes(event, DONE, self._delivered)

    def _repeated_usage(self) -> bytes:
        if self._behind:
            raise ContinuationError(ENDED_EARLY)
        return b""

    def _correct(self, usage: _Json, made: tuple[int, ...]) -> None:
        """Tokens that the new engine made more or fewer of, for choices that the client has all of, do not count."""
        known = self._delivered
        surplus = sum(made[choice] - known.covered(choice) for choice in range(len(made)) if known.has_all(choice))
        for name in ("completion_tokens", "total_tokens") if surplus else ():
            if isinstance(usage.get(name), int):
                usage[name] -= surplus

    def _choice(self, document: _Json, position: tuple[int, ...]) -> _Json | None:
        """Return what is left of one choice of one event; None is nothing."""
        index = document["index"]
        progress = self._progress.get(index)
        if progress is None:
            return document
        delivered = self._delivered.choices[index]
        ends = document.get("finish_reason") is not None
        if delivered.finished:
            if ends:
                self._behind.discard(index)
            return None
        if progress.caught_up:
            _shift_offsets(document.get("logprobs"), progress)
            return document
        at = position[index] if index < len(position) else None
        rest = _trimmed(document, delivered, progress)
        self._shifts |= bool(progress.shift)
        progress.caught_up = _has_caught_up(delivered, progress) and (at is None or at >= delivered.covered)
        if progress.caught_up:
            self._behind.discard(index)
        elif ends:
            raise ContinuationError(ENDED_EARLY)
        return rest if ends or _says_something(rest) else None


def _trimmed(document: _Json, delivered: DeliveredChoice, progress: _Progress) -> _Json:
    """Return the choice without what the client has of it."""
    document = dict(document)
    delta = document
    if "delta" in document:
        delta = document["delta"] = dict(document["delta"])
        if delivered.role:
            delta.pop("role", None)
    document.pop("prompt_token_ids", None)
    for name, text in texts_of(delta):
        rest, progress.texts[name] = rest_of_text(text, progress.texts.get(name, 0), delivered.texts.get(name, b""))
        if rest or delta is document:
            delta[name] = rest
        else:
            del delta[name]
    if delta.get("tool_calls"):
        calls = [_trimmed_call(call, delivered, progress) for call in delta["tool_calls"]]
        delta["tool_calls"] = [call for call in calls if call is not None]
        if not delta["tool_calls"]:
            del delta["tool_calls"]
    _trim_lists(document, delta, delivered, progress)
    return document


def _trimmed_call(call: _Json, delivered: DeliveredChoice, progress: _Progress) -> _Json | None:
    index = call["index"]
    tool = delivered.tools.get(index)
    if tool is None:
        return call
    function = dict(call.get("function") or {})
    if function.get("name") is not None and tool.fields.get("name", function["name"]) != function["name"]:
        raise ContinuationError(OTHER_TOOL)
    rest, progress.arguments[index] = rest_of_text(
        function.get("arguments") or "", progress.arguments.get(index, 0), tool.arguments
    )
    lacks = {key: call[key] for key in ("id", "type") if call.get(key) is not None and key not in tool.fields}
    left: _Json = {}
    if function.get("name") is not None and "name" not in tool.fields:
        left["name"] = function["name"]
    if rest:
        left["arguments"] = rest
    return {**lacks, "index": index, "function": left} if left or lacks else None


def _trim_lists(document: _Json, delta: _Json, delivered: DeliveredChoice, progress: _Progress) -> None:
    first = 0
    for name, entries in lists_of(document, delta):
        seen = progress.lists.get(name, 0)
        progress.lists[name] = seen + len(entries)
        drop = min(max(delivered.lists.get(name, 0) - seen, 0), len(entries))
        if name == "logprobs.tokens":
            first = drop
        elif drop:
            _holder(document, delta, name)[name.rpartition(".")[2]] = entries[drop:]
    _trim_offsets(document, first, delivered, progress)


def _trim_offsets(document: _Json, first: int, delivered: DeliveredChoice, progress: _Progress) -> None:
    """Return the four lists of a completion's log-probabilities, and where their tokens begin in the client's text."""
    logprobs = document.get("logprobs")
    if not logprobs or "tokens" not in logprobs:
        return
    logprobs = document["logprobs"] = {
        key: value[first:] if isinstance(value, list) else value for key, value in logprobs.items()
    }
    if progress.shift is None and logprobs.get("text_offset") and delivered.offset is not None:
        progress.shift = delivered.offset - logprobs["text_offset"][0]
    _shift_offsets(logprobs, progress)


def _shift_offsets(logprobs: _Json | None, progress: _Progress) -> None:
    if progress.shift and logprobs and logprobs.get("text_offset"):
        logprobs["text_offset"] = [offset + progress.shift for offset in logprobs["text_offset"]]


def _has_caught_up(delivered: DeliveredChoice, progress: _Progress) -> bool:
    return (
        all(progress.texts.get(name, 0) >= len(text) for name, text in delivered.texts.items())
        and all(progress.arguments.get(i, -1) >= len(tool.arguments) for i, tool in delivered.tools.items())
        and all(progress.lists.get(name, 0) >= count for name, count in delivered.lists.items())
    )


def _says_something(document: _Json) -> bool:
    delta = document.get("delta", document)
    said = any(text for _, text in texts_of(delta)) or delta.get("tool_calls") or "role" in delta
    return bool(said) or any(entries for _, entries in lists_of(document, delta))


def _holder(document: _Json, delta: _Json, name: str) -> _Json:
    """Return where a list of ``lists_of`` is found; a copy, so that it may be changed."""
    where = name.partition(".")[0]
    if where == "logprobs":
        document["logprobs"] = dict(document["logprobs"])
        holder: _Json = document["logprobs"]
        return holder
    return delta if where == "delta" else document
