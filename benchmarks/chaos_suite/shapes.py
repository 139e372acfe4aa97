"""Whether an answer has the shape that was asked for: that of the JSON schema, a tool's arguments, the regex."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chaos_suite.asks import REGEX, SCHEMA, Ask

__all__ = ("unfit",)

_CUT = ("length", "max_tokens", "incomplete")


def unfit(ask: Ask, facts: Mapping[str, Any]) -> list[str]:
    """What does not fit, in words. Of an answer that its limit cut off nothing can be said."""
    if not ask.is_shaped or _was_cut(facts):
        return []
    said = list(_shaped(ask, facts))
    if not said:
        return ["nothing of the shape that was asked for"]
    if ask.kind == "text-regex":
        return [f"not by the regex: {text[:80]!r}" for text in said if not re.fullmatch(REGEX["regex"], text)]
    if ask.kind == "messages-tool":  # vLLM keeps to a tool's schema where it is strict, which nobody can say here
        return [f"no JSON: {text[:80]!r}" for text in said if not _is_json(text)]
    return [f"not by the schema: {text[:80]!r}" for text in said if not _fits(text)]


def _was_cut(facts: Mapping[str, Any]) -> bool:
    ends = [value[0] for place, value in facts.items() if place.endswith(".finish") or place == "stop"]
    return any(end in _CUT for end in (*ends, facts.get("status")))


def _shaped(ask: Ask, facts: Mapping[str, Any]) -> Iterator[str]:
    """The texts that are to have the shape."""
    end = ".text" if ask.kind in ("chat-schema", "text-regex") else ".arguments"
    for place, value in facts.items():
        of_tool = place.endswith(".said") and facts[place.replace("said", "kind")][0] == "tool_use"
        if place.endswith(end) or of_tool:
            yield value
        elif isinstance(value, dict) and "arguments" in value:
            yield value["arguments"]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _fits(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if not isinstance(value, dict) or sorted(value) != sorted(SCHEMA["required"]):
        return False
    name, knots, crew = value["name"], value["knots"], value["crew"]
    has_name = isinstance(name, str) and len(name) <= 24
    has_crew = isinstance(crew, list) and 1 <= len(crew) <= 3 and all(isinstance(c, str) and len(c) <= 12 for c in crew)
    return has_name and has_crew and type(knots) is int and 0 <= knots <= 999
