"""Chat and completion streams: what a client has of each choice."""

from __future__ import annotations

from typing import Any

from longboat.gateway.resume.continuation.parts import DONE, Event, decoded

__all__ = ("DeliveredChoice", "DeliveredChoices", "line_of", "lists_of", "texts_of")

_Json = dict[str, Any]


class _Tool:
    """One tool call of a choice. arguments: UTF-8, as far as the client has them."""

    __slots__ = ("arguments", "fields")

    def __init__(self) -> None:
        self.fields: _Json = {}
        self.arguments = bytearray()


class DeliveredChoice:
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


class DeliveredChoices:
    """What a client has of a chat or completion stream."""

    def __init__(self) -> None:
        self.ended = False
        self.head: _Json = {}
        self.line = b""
        self.choices: dict[int, DeliveredChoice] = {}
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
            self.line = line_of(data)
        if document.get("system_fingerprint") is not None:
            self.head.setdefault("system_fingerprint", document["system_fingerprint"])

    def _note_choice(self, document: _Json, position: tuple[int, ...]) -> None:
        index = document["index"]
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = DeliveredChoice()
        choice.begun = True
        choice.finished |= document.get("finish_reason") is not None
        delta = document.get("delta", document)
        role = "role" in delta
        choice.role |= role
        if not role and index < len(position):
            choice.covered = max(choice.covered, position[index])
        for name, text in texts_of(delta):
            choice.texts.setdefault(name, bytearray()).extend(text.encode("utf-8", "surrogatepass"))
        for call in delta.get("tool_calls") or ():
            _note_tool(choice.tools.setdefault(call["index"], _Tool()), call)
        for name, entries in lists_of(document, delta):
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


def texts_of(delta: _Json) -> list[tuple[str, str]]:
    """Name the text fields of a delta, or of a completion's choice."""
    if "text" in delta and "index" in delta:
        return [("text", delta["text"] or "")]
    return [(name, value) for name, value in delta.items() if isinstance(value, str) and name != "role"]


def lists_of(document: _Json, delta: _Json) -> list[tuple[str, list[Any]]]:
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


def line_of(data: bytes) -> bytes:
    """Return an event's beginning, the same in all events of one stream; b"" where it has no such thing."""
    at = data.find(b'"choices":')
    return data[:at] if at > 0 else b""
