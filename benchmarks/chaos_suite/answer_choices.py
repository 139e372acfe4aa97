"""Answers of chats and completions: out of their chunks, and out of a whole body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ("read_choices", "usage_facts", "whole_choices")

SAME = ("id", "created", "model", "object", "system_fingerprint")
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens")


def read_choices(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Facts by place, such as ``0.text``; and what is wrong with the stream as a stream."""
    facts: dict[str, Any] = {}
    wrongs = [
        f"{name} changes within the stream: {sorted(values, key=str)}"
        for name in SAME
        if len(values := {str(d[name]) for d in documents if name in d}) > 1
    ]
    openings: list[int] = []
    for document in documents:
        if usage := document.get("usage"):
            if "usage" in facts:
                wrongs.append("usage comes twice")
            facts["usage"] = usage_facts(usage)
        for choice in document.get("choices", ()):
            place = f"{choice['index']}"
            if f"{place}.finish" in facts:
                wrongs.append(f"choice {place} goes on after its end")
            if (choice.get("delta") or {}).get("role"):
                openings.append(choice["index"])
            _add_choice(facts, place, choice, wrongs)
    if len(openings) != len(set(openings)):
        wrongs.append("a choice is opened twice")
    return facts, wrongs


def whole_choices(document: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a body."""
    facts: dict[str, Any] = {"usage": usage_facts(document["usage"])}
    for choice in document["choices"]:
        _add_choice(facts, f"{choice['index']}", {**choice, "delta": choice.get("message") or {}}, [])
    return facts


def usage_facts(usage: Mapping[str, Any]) -> dict[str, int]:
    """The counts; how much of the prompt was cached depends on who asked before."""
    return {name: usage[name] for name in COUNTS if name in usage}


def _add_choice(facts: dict[str, Any], place: str, choice: Mapping[str, Any], wrongs: list[str]) -> None:
    delta = choice.get("delta") or {}
    _say(facts, f"{place}.text", choice.get("text") or delta.get("content"))
    _say(facts, f"{place}.reasoning", delta.get("reasoning") or delta.get("reasoning_content"))
    for number, call in enumerate(delta.get("tool_calls") or ()):
        _add_call(facts, f"{place}.call{call.get('index', number)}", call, wrongs)
    if choice.get("logprobs"):
        _add_logprobs(facts, f"{place}.logprobs", choice["logprobs"])
    if choice.get("finish_reason"):
        facts[f"{place}.finish"] = [choice["finish_reason"], choice.get("stop_reason")]


def _say(facts: dict[str, Any], place: str, text: str | None) -> None:
    if text:
        facts[place] = facts.get(place, "") + text


def _add_call(facts: dict[str, Any], place: str, call: Mapping[str, Any], wrongs: list[str]) -> None:
    function = call.get("function") or {}
    if function.get("name"):
        if f"{place}.name" in facts:
            wrongs.append(f"{place} is named twice")
        facts[f"{place}.name"] = function["name"]
    _say(facts, f"{place}.arguments", function.get("arguments"))


def _add_logprobs(facts: dict[str, Any], place: str, logprobs: Mapping[str, Any]) -> None:
    for name, values in logprobs.items():
        if isinstance(values, list):
            facts[f"{place}.{name}"] = [*facts.get(f"{place}.{name}", ()), *values]
