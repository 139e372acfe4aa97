"""Builders for tests of resuming: requests of every kind for ``builtin:tiny``, and what a client received."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ("KINDS", "client_view")

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
_STORY, _WEATHER, _GANG = "Tell me a story about ships.", "What is the weather in Paris?", "What is a gang?"
_HOT = {"temperature": 1.3, "top_p": 1.0, "top_k": 0}
_PENALTIES = {"presence_penalty": 0.8, "frequency_penalty": 0.6, "repetition_penalty": 1.2}
_USAGE = {"stream_options": {"include_usage": True}}
_THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
_TAGS = {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 2, "maxItems": 3}
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "maximum": 99999},
        "t": _TAGS,
    },
    "required": ["name", "age", "t"],
    "additionalProperties": False,
}
_JSON = {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": _SCHEMA, "strict": True}}}
_REGEX = {"structured_outputs": {"regex": "[a-f]{4}-[0-9]{6}(-[g-k]{5})?"}}
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 14}, "days": {"type": "integer", "maximum": 9999}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": _PARAMETERS}

_SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "unseeded": _HOT,
    "seeded": {**_HOT, "seed": 11},
    "seeded-top": {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "seed": 4},
    "min-p": {**_HOT, "min_p": 0.02, "seed": 5},
    "penalties": {"temperature": 0, **_PENALTIES},
    "penalties-seeded": {**_HOT, "seed": 2, **_PENALTIES},
    "min-tokens": {"temperature": 0, "min_tokens": 30},
    "logit-bias": {"temperature": 0, "logit_bias": {"557": -5, "32": -100}},
    "bad-words": {"temperature": 0, "bad_words": ["gang", " of"]},
    "utf8": {**_HOT, "seed": 9, "ignore_eos": True},
    "stop": {**_HOT, "seed": 21, "stop": ["e", "the"], "min_tokens": 10},
    "stop-included": {**_HOT, "seed": 22, "stop": ["an"], "include_stop_str_in_output": True, "min_tokens": 9},
    "stop-token": {**_HOT, "seed": 23, "stop_token_ids": [302, 270, 13], "min_tokens": 6},
    "two": {**_HOT, "n": 2},
    "two-seeded": {**_HOT, "n": 2, "seed": 6},
    "regex": {"temperature": 0, **_REGEX},
    "regex-seeded": {**_HOT, "seed": 3, **_REGEX},
    "json": {"temperature": 0, **_JSON, "max_tokens": 120},
    "json-seeded": {**_HOT, "seed": 13, **_JSON, "max_tokens": 120},
    "json-two": {**_HOT, "n": 2, **_JSON, "max_tokens": 90},
}


def _chats() -> dict[str, dict[str, Any]]:
    def chat(text: str, **rest: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}], "max_tokens": 48, **_USAGE, **rest}

    tools = {"tools": [{"type": "function", "function": _FUNCTION}], "max_tokens": 120}
    named = {"type": "function", "function": {"name": "get_weather"}}
    logprobs = {"logprobs": True, "top_logprobs": 3}
    return {
        **{name: chat(_STORY, **sampling) for name, sampling in _SAMPLING.items()},
        "logprobs": chat(_GANG, temperature=0, **logprobs),
        "logprobs-seeded": chat(_STORY, **_HOT, seed=8, **logprobs),
        "logprobs-two": chat(_STORY, **_HOT, n=2, **logprobs),
        "tool-auto": chat(_WEATHER, temperature=0, tool_choice="auto", **tools),
        "tool-named": chat(_WEATHER, **_HOT, tool_choice=named, **tools),
        "tool-required": chat(_WEATHER, **_HOT, tool_choice="required", **tools),
        "tool-logprobs": chat(_WEATHER, temperature=0, logprobs=True, **tools),
        "reasoning": chat(_GANG, temperature=0, **_THINKING),
        "reasoning-seeded": chat(_GANG, **_HOT, seed=3, **_THINKING),
        "reasoning-json": chat(_GANG, temperature=0, **_THINKING, **_JSON) | {"max_tokens": 120},
    }


def _texts() -> dict[str, dict[str, Any]]:
    def text(prompt: Any, **rest: Any) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": 40, **_USAGE, **rest}

    return {
        **{name: text(_STORY, **sampling) for name, sampling in _SAMPLING.items()},
        "logprobs": text(_GANG, temperature=0, logprobs=3),
        "echo": text(_STORY, echo=True, **_HOT),
        "two-prompts": text([_GANG, _STORY], n=2, **_HOT),
        "same-prompt-twice": text([_GANG, _GANG], **_HOT),
        "token-prompt": text([32, 557, 272], **_HOT),
    }


def _messages() -> dict[str, dict[str, Any]]:
    def message(text: str, **rest: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}], "max_tokens": 48, **rest}

    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": _PARAMETERS}
    tools = {"tools": [tool], "max_tokens": 120}
    return {
        "greedy": message(_STORY, temperature=0),
        "unseeded": message(_STORY, **_HOT),
        "stop": message(_STORY, stop_sequences=["oar"], temperature=0),
        "tool-auto": message(_WEATHER, temperature=0, tool_choice={"type": "auto"}, **tools),
        "tool-named": message(_WEATHER, **_HOT, tool_choice={"type": "tool", "name": "get_weather"}, **tools),
        "tool-any": message(_WEATHER, **_HOT, tool_choice={"type": "any"}, **tools),
        "reasoning": message(_GANG, temperature=0, **_THINKING),
    }


def _responses() -> dict[str, dict[str, Any]]:
    def response(said: str, **rest: Any) -> dict[str, Any]:
        return {"input": said, "max_output_tokens": 48, "temperature": 0, **rest}

    tools = {"tools": [{"type": "function", **_FUNCTION}], "max_output_tokens": 120}
    json_format = {"format": {"type": "json_schema", "name": "p", "schema": _SCHEMA, "strict": True}}
    return {
        "greedy": response(_STORY),
        "unseeded": response(_STORY, temperature=1.3, top_p=1.0),
        "json": response(_STORY, temperature=1.0, text=json_format, max_output_tokens=120),
        "logprobs": response(_STORY, include=["message.output_text.logprobs"], top_logprobs=2),
        "tool-auto": response(_WEATHER, **tools),
        "tool-required": response(_WEATHER, tool_choice="required", **tools),
        "reasoning": response(_GANG, **_THINKING),
    }


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{api} {name}": (path, {"model": "tiny", "stream": True, **body})
    for api, path, bodies in (
        ("chat", CHAT, _chats()),
        ("completions", TEXT, _texts()),
        ("messages", MESSAGES, _messages()),
        ("responses", RESPONSES, _responses()),
    )
    for name, body in bodies.items()
}
"""API and kind → path and body."""


def client_view(path: str, events: Iterable[Mapping[str, Any]], num_carried: Mapping[int, int] | None = None) -> Any:
    """Return what a client has at the end, without random ids and without signs of caches.

    num_carried: by choice, tokens whose log-probabilities the client has from before
    """
    if path == MESSAGES:
        return _message_view(events)
    if path == RESPONSES:
        return _response_view(events)
    return _choices_view(events, num_carried or {})


def _choices_view(events: Iterable[Mapping[str, Any]], num_carried: Mapping[int, int]) -> Any:
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in events:
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            seen = choices.setdefault(choice["index"], {"text": "", "reasoning": "", "tools": {}, "logprobs": []})
            delta = choice.get("delta") or {}
            seen["text"] += (choice.get("text") or "") + (delta.get("content") or "")
            seen["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or ():
                _add_call(seen["tools"], call)
            seen["logprobs"] += _logprob_rows(choice.get("logprobs"))
            for name in ("finish_reason", "stop_reason"):
                seen[name] = choice.get(name) or seen.get(name)
    for index, num_tokens in num_carried.items():
        del choices[index]["logprobs"][:num_tokens]
    return choices, usage


def _add_call(calls: dict[int, dict[str, Any]], call: Mapping[str, Any]) -> None:
    seen = calls.setdefault(call["index"], {"name": "", "arguments": "", "num_ids": 0})
    function = call.get("function") or {}
    seen["name"] += function.get("name") or ""
    seen["arguments"] += function.get("arguments") or ""
    seen["num_ids"] += bool(call.get("id"))


def _logprob_rows(logprobs: Mapping[str, Any] | None) -> list[Any]:
    if not logprobs:
        return []
    if "content" in logprobs:
        return list(logprobs["content"] or ())
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return [dict(zip(names, row, strict=True)) for row in zip(*(logprobs[name] for name in names), strict=True)]


def _message_view(events: Iterable[Mapping[str, Any]]) -> Any:
    blocks: dict[int, dict[str, Any]] = {}
    end = None
    for event in events:
        if event["type"] == "content_block_start":
            block = {name: value for name, value in event["content_block"].items() if name != "id"}
            blocks[event["index"]] = {**block, "deltas": ""}
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            said = (delta.get(name) for name in ("text", "thinking", "partial_json"))
            blocks[event["index"]]["deltas"] += "".join(part or "" for part in said)
        elif event["type"] == "message_delta":
            end = event["delta"], event["usage"]
    return blocks, end


def _response_view(events: Iterable[Mapping[str, Any]]) -> Any:
    deltas, end = "", None
    for event in events:
        if event["type"].endswith(".delta") and isinstance(event.get("delta"), str):
            deltas += event["delta"]
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            end = json.loads(json.dumps(event["response"]))
    if end is None:
        return deltas, None
    for item in end["output"]:
        item.pop("id", None)
        item.pop("call_id", None)
    usage = {name: end["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")}
    return deltas, end["output"], end["status"], end["incomplete_details"], usage
