"""What the chaos suite asks for: requests of every kind that can be resumed, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ("KINDS", "Ask", "make_asks")

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
_TEXT = (
    "row the boat across a deep river before north wind and tide turn while seven small red lanterns wait "
    "on the harbour wall and every crew member counts rope sails oars and waves until morning light reaches shore"
)
WORDS = _TEXT.split()
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "knots": {"type": "integer", "minimum": 0, "maximum": 999},
        "crew": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "knots", "crew"],
    "additionalProperties": False,
}
TOOL = {"name": "row", "description": "Row the boat.", "parameters": SCHEMA, "strict": True}
CHAT_TOOL = {"type": "function", "function": TOOL}
WHOLE_RATIO = 0.1
_SHAPED = {"response_format", "structured_outputs", "tools"}
"""What says itself how long an answer is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. is_repeatable: an unfaulted run gives the same answer, so one can be kept to compare with.

    is_shaped: it asks for a shape, of an engine that keeps to it
    """

    kind: str
    path: str
    document: Mapping[str, Any]
    is_repeatable: bool = True
    is_shaped: bool = False

    @property
    def is_streamed(self) -> bool:
        return bool(self.document.get("stream"))


def _chat(rng: random.Random, *parts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": _words(rng)}], "max_tokens": rng.randint(24, 72)}
    return _joined(asked, *parts, more)


def _text(rng: random.Random, *parts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return _joined({"prompt": _words(rng), "max_tokens": rng.randint(24, 72)}, *parts, more)


def _response(rng: random.Random, *parts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return _joined({"input": _words(rng), "max_output_tokens": rng.randint(24, 72)}, *parts, more)


def _joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 24)))


def _seed(rng: random.Random) -> dict[str, int]:
    return {"seed": rng.getrandbits(30)}


GREEDY = {"temperature": 0}
FREE = {"temperature": 1.0}
LONG = {"max_tokens": 160}
FORMAT = {"type": "json_schema", "json_schema": {"name": "boat", "schema": SCHEMA}}
TOOLS = {"tools": [{"type": "function", "function": TOOL}]}
NAMED = {"type": "function", "function": {"name": "row"}}
REGEX = {"regex": "[a-z]{20,60}( [0-9]{3}){4}"}
"""SGLang's field, and what vLLM's holds."""
PENALTIES = {"presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.1}
MESSAGES_TOOL = {"tools": [{"name": "row", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}
RESPONSES_TOOL = {"tools": [{"type": "function", **TOOL}], "tool_choice": "required", "max_output_tokens": 160}
THINKS = {"chat_template_kwargs": {"enable_thinking": True}}
THINKING = {"thinking": {"type": "adaptive"}}
Maker = Callable[[random.Random], dict[str, Any]]

KINDS: dict[str, tuple[str, Maker]] = {
    "chat-greedy": (CHAT, lambda r: _chat(r, GREEDY)),
    "chat-seeded": (CHAT, lambda r: _chat(r, FREE, _seed(r), top_p=0.9)),
    "chat-unseeded": (CHAT, lambda r: _chat(r, FREE)),
    "chat-penalised": (CHAT, lambda r: _chat(r, GREEDY, PENALTIES)),
    "chat-schema": (CHAT, lambda r: _chat(r, FREE, _seed(r), LONG, response_format=FORMAT)),
    "chat-n2": (CHAT, lambda r: _chat(r, FREE, _seed(r), n=2)),
    "chat-tool": (CHAT, lambda r: _chat(r, GREEDY, LONG, TOOLS, tool_choice="required")),
    "chat-named-tool": (CHAT, lambda r: _chat(r, GREEDY, LONG, TOOLS, tool_choice=NAMED)),
    "chat-reasoning": (CHAT, lambda r: _chat(r, GREEDY, THINKS)),
    "chat-stop": (CHAT, lambda r: _chat(r, GREEDY, stop=["ea", "ow "])),
    "chat-logprobs": (CHAT, lambda r: _chat(r, FREE, _seed(r), logprobs=True, top_logprobs=3)),
    "text-greedy": (TEXT, lambda r: _text(r, GREEDY)),
    "text-seeded": (TEXT, lambda r: _text(r, FREE, _seed(r), top_k=20)),
    "text-unseeded": (TEXT, lambda r: _text(r, FREE)),
    "text-regex": (TEXT, lambda r: _text(r, GREEDY, REGEX, structured_outputs=REGEX)),
    "text-n2": (TEXT, lambda r: _text(r, FREE, _seed(r), n=2)),
    "text-logprobs": (TEXT, lambda r: _text(r, GREEDY, logprobs=2)),
    "messages-greedy": (MESSAGES, lambda r: _chat(r, GREEDY)),
    "messages-stop": (MESSAGES, lambda r: _chat(r, GREEDY, stop_sequences=["ea"])),
    "messages-tool": (MESSAGES, lambda r: _chat(r, GREEDY, LONG, MESSAGES_TOOL)),
    "messages-thinking": (MESSAGES, lambda r: _chat(r, GREEDY, THINKING)),
    "responses-greedy": (RESPONSES, lambda r: _response(r, GREEDY)),
    "responses-reasoning": (RESPONSES, lambda r: _response(r, GREEDY, reasoning={"effort": "low"})),
    "responses-tool": (RESPONSES, lambda r: _response(r, GREEDY, RESPONSES_TOOL)),
}


def make_asks(seed: int, count: int, model: str, kinds: tuple[str, ...] = (), *, is_long: bool = False) -> list[Ask]:
    """``count`` requests for ``model``, each kind as often as the others. kinds: only these; empty: all.

    is_long: small models say little by themselves; where a request may be told to, it asks for more. Theirs are
    real engines, which keep to the shape that is asked for
    """
    rng = random.Random(f"asks {seed}")
    names = [name for name in KINDS if not kinds or name in kinds]
    return [_ask(rng, names[number % len(names)], model, is_long=is_long) for number in range(count)]


def _ask(rng: random.Random, kind: str, model: str, *, is_long: bool) -> Ask:
    path, make = KINDS[kind]
    document = {"model": model, **make(rng)}
    if is_long and path in (CHAT, TEXT) and not _SHAPED & document.keys():
        document["min_tokens"] = rng.randint(32, 120)
        document["max_tokens"] += document["min_tokens"]
    is_streamed = rng.random() >= WHOLE_RATIO
    if is_streamed:
        document["stream"] = True
        if path in (CHAT, TEXT) and rng.random() < 0.5:
            document["stream_options"] = {"include_usage": True}
    is_shaped = is_long and bool(_SHAPED & document.keys())
    return Ask(kind=kind, path=path, document=document, is_repeatable="unseeded" not in kind, is_shaped=is_shaped)
