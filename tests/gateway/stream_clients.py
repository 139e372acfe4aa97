"""What a client makes of a stream: the same, whatever the pieces that it came in."""

from __future__ import annotations

from typing import Any

from engine_streams import events


def read_openai(stream: bytes) -> dict[str, Any]:
    """Of a chat or completion stream."""
    result: dict[str, Any] = {"heads": set(), "choices": {}, "usage": [], "fingerprints": set(), "dones": 0}
    for _, document in events(stream):
        if document == "[DONE]":
            result["dones"] += 1
            continue
        assert "error" not in document
        result["heads"].add(tuple(document[key] for key in ("id", "object", "created", "model")))
        if document.get("system_fingerprint"):
            result["fingerprints"].add(document["system_fingerprint"])
        if not document["choices"]:
            result["usage"].append(document["usage"])
        for choice in document["choices"]:
            _add_choice(result["choices"].setdefault(choice["index"], {}), choice)
            result["choices"][choice["index"]]["running usage"] = document.get("usage")
        if "prompt_token_ids" in document:
            result.setdefault("prompt", []).append(document["prompt_token_ids"])
    return result


def _add_choice(state: dict[str, Any], choice: dict[str, Any]) -> None:
    assert "finish_reason" not in state, "something came after the end of a choice"
    delta = choice.get("delta", {"text": choice.get("text")})
    for name, value in delta.items():
        if name == "role":
            state["roles"] = state.get("roles", 0) + 1
        elif isinstance(value, str):
            state.setdefault("texts", {})
            state["texts"][name] = state["texts"].get(name, "") + value
    for call in delta.get("tool_calls", ()):
        _add_call(state.setdefault("tools", {}).setdefault(call["index"], {"arguments": ""}), call)
    for name in ("token_ids", "prompt_token_ids"):
        if choice.get(name):
            state.setdefault(name, []).extend(choice[name])
    for name, entries in (choice.get("logprobs") or {}).items():
        state.setdefault(f"logprobs {name}", []).extend(entries)
    if choice.get("finish_reason") is not None:
        state["finish_reason"] = (choice["finish_reason"], choice["stop_reason"])


def _add_call(tool: dict[str, Any], call: dict[str, Any]) -> None:
    function = call["function"]
    for name, value in (("id", call.get("id")), ("type", call.get("type")), ("name", function.get("name"))):
        if value is not None:
            assert name not in tool, f"a tool call has its {name} twice"
            tool[name] = value
    tool["arguments"] += function.get("arguments") or ""


def without_own_ids(result: dict[str, Any]) -> dict[str, Any]:
    """Without what an engine names as it likes, and the client has only once."""
    for choice in result["choices"].values():
        for tool in choice.get("tools", {}).values():
            assert tool.pop("id")
    result.pop("fingerprints")
    for choice in result["choices"].values():
        choice["texts"] = {name: text for name, text in choice.get("texts", {}).items() if text}
    return result
