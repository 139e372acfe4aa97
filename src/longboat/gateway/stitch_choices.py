"""Chat and completion streams: what a client has of each choice, and the rest of it out of a new stream."""

from __future__ import annotations

from typing import Any

from longboat.gateway.stitch_parts import DONE, Event, StitchError, decoded, encoded, event_bytes, rest_of_text

__all__ = ("ReceivedChoices", "RestOfChoices")

_Json = dict[str, Any]
_ERROR = b'data: {"error"'


class _Tool:
    """One tool call of a choice. arguments: UTF-8, as far as the client has them."""

    __slots__ = ("arguments", "fields")

    def __init__(self) -> None:
        self.fields: _Json = {}
        self.arguments = bytearray()


class _Choice:
    """What a client has of one choice.

    texts: UTF-8 of each text field (``content``, ``reasoning``, ``text`` …)
    lists: number of entries of each list (``token_ids``, log-probabilities …)
    offset: where the next token begins that ``text_offset`` will tell (characters)
    covered: tokens of which the client has what they say
    """

    __slots__ = ("begun", "covered", "finished", "lists", "offset", "role", "texts", "tools")

    def __init__(self) -> None:
        self.texts: dict[str, bytearray] = {}
        self.tools: dict[int, _Tool] = {}
        self.lists: dict[str, int] = {}
        self.offset: int | None = None
        self.covered = 0
        self.role = False
        self.begun = False
        self.finished = False


class ReceivedChoices:
    """What a client has of a chat or completion stream."""

    def __init__(self) -> None:
        self.ended = False
        self.head: _Json = {}
        self.line = b""
        self.choices: dict[int, _Choice] = {}
        self.has_usage = False

    def note(self, event: Event) -> None:
        if event.data == DONE:
            self.ended = True
        elif event.data:
            document = decoded(event.data)
            if "error" in document or not isinstance(document.get("choices"), list):
                self.ended = True
                return
            self._note_head(document, event.data)
            for choice in document["choices"]:
                self._note_choice(choice, event.position)
            self.has_usage |= not document["choices"]

    def carried(self, choice: int, num_ids: int) -> int:
        known = self.choices.get(choice)
        if known is None:
            return 0
        if known.finished:
            return max(num_ids - 1, 0)
        return min(known.covered, num_ids)

    def covered(self, choice: int) -> int:
        return self.choices[choice].covered if choice in self.choices else 0

    def has_all(self, choice: int) -> bool:
        return choice in self.choices and self.choices[choice].finished

    @property
    def held_bytes(self) -> int:
        tools = (len(tool.arguments) for choice in self.choices.values() for tool in choice.tools.values())
        return sum(tools) + sum(len(text) for choice in self.choices.values() for text in choice.texts.values())

    def _note_head(self, document: _Json, data: bytes) -> None:
        if not self.head:
            self.head = {key: document[key] for key in ("id", "created", "model") if key in document}
            self.line = _line(data)
        if document.get("system_fingerprint") is not None:
            self.head.setdefault("system_fingerprint", document["system_fingerprint"])

    def _note_choice(self, document: _Json, position: tuple[int, ...]) -> None:
        index = document["index"]
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = _Choice()
        choice.begun = True
        choice.finished |= document.get("finish_reason") is not None
        delta = document.get("delta", document)
        role = "role" in delta
        choice.role |= role
        if not role and index < len(position):
            choice.covered = max(choice.covered, position[index])
        for name, text in _texts(delta):
            choice.texts.setdefault(name, bytearray()).extend(text.encode("utf-8", "surrogatepass"))
        for call in delta.get("tool_calls") or ():
            _note_tool(choice.tools.setdefault(call["index"], _Tool()), call)
        for name, entries in _lists(document, delta):
            choice.lists[name] = choice.lists.get(name, 0) + len(entries)
        logprobs = document.get("logprobs") or {}
        if logprobs.get("text_offset"):
            choice.offset = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])


def _note_tool(tool: _Tool, call: _Json) -> None:
    function = call.get("function") or {}
    for name, value in (("id", call.get("id")), ("type", call.get("type")), ("name", function.get("name"))):
        if value is not None:
            tool.fields[name] = value
    tool.arguments.extend((function.get("arguments") or "").encode("utf-8", "surrogatepass"))


class _Progress:
    """How far the new stream has repeated one choice: bytes of each text, entries of each list."""

    __slots__ = ("arguments", "caught_up", "lists", "shift", "texts")

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.arguments: dict[int, int] = {}
        self.lists: dict[str, int] = {}
        self.shift: int | None = None
        self.caught_up = False


class RestOfChoices:
    """The rest of a chat or completion stream.

    received: what the client has when it begins; not changed meanwhile, until it caught up
    """

    def __init__(self, received: ReceivedChoices) -> None:
        self._received = received
        self._progress = {index: _Progress() for index in received.choices}
        self._behind = set(self._progress)
        self._old_line = b"data: " + received.line
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
            raise StitchError("the engine that was to go on with an answer failed")
        if not self._new_line and self._old_line != b"data: ":
            self._new_line = b"data: " + _line(event.data)
        if choices:
            kept = [rest for choice in choices if (rest := self._choice(choice, event.position)) is not None]
            if not kept:
                return b""
            document["choices"] = kept
        elif self._received.has_usage or self._behind:
            return self._repeated_usage()
        else:
            self._correct(document.get("usage") or {}, event.position)
        document.update(
            (key, value)
            for key, value in self._received.head.items()
            if key != "system_fingerprint" or document.get(key) is not None
        )
        return event_bytes(event, encoded(document), self._received)

    def _done(self, event: Event) -> bytes:
        if self._behind:
            raise StitchError("the engine that was to go on with an answer ended before it")
        return event_bytes(event, DONE, self._received)

    def _repeated_usage(self) -> bytes:
        if self._behind:
            raise StitchError("the engine that was to go on with an answer ended before it")
        return b""

    def _correct(self, usage: _Json, made: tuple[int, ...]) -> None:
        """Tokens that the new engine made more or fewer of, for choices that the client has all of, do not count."""
        known = self._received
        surplus = sum(made[choice] - known.covered(choice) for choice in range(len(made)) if known.has_all(choice))
        for name in ("completion_tokens", "total_tokens") if surplus else ():
            if isinstance(usage.get(name), int):
                usage[name] -= surplus

    def _choice(self, document: _Json, position: tuple[int, ...]) -> _Json | None:
        """What is left of one choice of one event; None is nothing."""
        index = document["index"]
        progress = self._progress.get(index)
        if progress is None:
            return document
        received = self._received.choices[index]
        ends = document.get("finish_reason") is not None
        if received.finished:
            if ends:
                self._behind.discard(index)
            return None
        if progress.caught_up:
            _shift_offsets(document.get("logprobs"), progress)
            return document
        at = position[index] if index < len(position) else None
        rest = _trimmed(document, received, progress)
        self._shifts |= bool(progress.shift)
        progress.caught_up = _has_caught_up(received, progress) and (at is None or at >= received.covered)
        if progress.caught_up:
            self._behind.discard(index)
        elif ends:
            raise StitchError("the engine that was to go on with an answer ended before it")
        return rest if ends or _says_something(rest) else None


def _trimmed(document: _Json, received: _Choice, progress: _Progress) -> _Json:
    """The choice without what the client has of it."""
    document = dict(document)
    delta = document
    if "delta" in document:
        delta = document["delta"] = dict(document["delta"])
        if received.role:
            delta.pop("role", None)
    document.pop("prompt_token_ids", None)
    for name, text in _texts(delta):
        rest, progress.texts[name] = rest_of_text(text, progress.texts.get(name, 0), received.texts.get(name, b""))
        if rest or delta is document:
            delta[name] = rest
        else:
            del delta[name]
    if delta.get("tool_calls"):
        calls = [_trimmed_call(call, received, progress) for call in delta["tool_calls"]]
        delta["tool_calls"] = [call for call in calls if call is not None]
        if not delta["tool_calls"]:
            del delta["tool_calls"]
    _trim_lists(document, delta, received, progress)
    return document


def _trimmed_call(call: _Json, received: _Choice, progress: _Progress) -> _Json | None:
    index = call["index"]
    tool = received.tools.get(index)
    if tool is None:
        return call
    function = dict(call.get("function") or {})
    if function.get("name") is not None and tool.fields.get("name", function["name"]) != function["name"]:
        raise StitchError("the engine that was to go on with an answer called another tool")
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


def _trim_lists(document: _Json, delta: _Json, received: _Choice, progress: _Progress) -> None:
    first = 0
    for name, entries in _lists(document, delta):
        seen = progress.lists.get(name, 0)
        progress.lists[name] = seen + len(entries)
        drop = min(max(received.lists.get(name, 0) - seen, 0), len(entries))
        if name == "logprobs.tokens":
            first = drop
        elif drop:
            _holder(document, delta, name)[name.rpartition(".")[2]] = entries[drop:]
    _trim_offsets(document, first, received, progress)


def _trim_offsets(document: _Json, first: int, received: _Choice, progress: _Progress) -> None:
    """The four lists of a completion's log-probabilities, and where their tokens begin in the client's text."""
    logprobs = document.get("logprobs")
    if not logprobs or "tokens" not in logprobs:
        return
    logprobs = document["logprobs"] = {
        key: value[first:] if isinstance(value, list) else value for key, value in logprobs.items()
    }
    if progress.shift is None and logprobs.get("text_offset") and received.offset is not None:
        progress.shift = received.offset - logprobs["text_offset"][0]
    _shift_offsets(logprobs, progress)


def _shift_offsets(logprobs: _Json | None, progress: _Progress) -> None:
    if progress.shift and logprobs and logprobs.get("text_offset"):
        logprobs["text_offset"] = [offset + progress.shift for offset in logprobs["text_offset"]]


def _has_caught_up(received: _Choice, progress: _Progress) -> bool:
    return (
        all(progress.texts.get(name, 0) >= len(text) for name, text in received.texts.items())
        and all(progress.arguments.get(i, -1) >= len(tool.arguments) for i, tool in received.tools.items())
        and all(progress.lists.get(name, 0) >= count for name, count in received.lists.items())
    )


def _says_something(document: _Json) -> bool:
    delta = document.get("delta", document)
    said = any(text for _, text in _texts(delta)) or delta.get("tool_calls") or "role" in delta
    return bool(said) or any(entries for _, entries in _lists(document, delta))


def _texts(delta: _Json) -> list[tuple[str, str]]:
    """The text fields of a delta, or of a completion's choice."""
    if "text" in delta and "index" in delta:
        return [("text", delta["text"] or "")]
    return [(name, value) for name, value in delta.items() if isinstance(value, str) and name != "role"]


def _lists(document: _Json, delta: _Json) -> list[tuple[str, list[Any]]]:
    """Everything that comes as entries to be appended, by a name."""
    found: list[tuple[str, list[Any]]] = []
    if document.get("token_ids"):
        found.append(("token_ids", document["token_ids"]))
    logprobs = document.get("logprobs")
    if logprobs:
        found += [
            (f"logprobs.{name}", logprobs[name]) for name in ("content", "refusal", "tokens") if logprobs.get(name)
        ]
    if delta is not document:
        found += [
            (f"delta.{name}", value)
            for name, value in delta.items()
            if isinstance(value, list) and value and name != "tool_calls"
        ]
    return found


def _holder(document: _Json, delta: _Json, name: str) -> _Json:
    """Where a list of ``_lists`` is found; a copy, so that it may be changed."""
    where = name.partition(".")[0]
    if where == "logprobs":
        document["logprobs"] = dict(document["logprobs"])
        holder: _Json = document["logprobs"]
        return holder
    return delta if where == "delta" else document


def _line(data: bytes) -> bytes:
    """An event's beginning, the same in all events of one stream; b"" where it has no such thing."""
    at = data.find(b'"choices":')
    return data[:at] if at > 0 else b""
