"""Responses of the fake engine with a fixed text: JSON that fits a schema, and tool calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from longboat_fake.engine.tokens import VOCABULARY

__all__ = ("Script", "instance_of", "pieces_of", "script_of")

_PIECE = re.compile(r"\s*[^\s\w]|\s*\w+|\s+")
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A text in pieces, one per token."""

    pieces: tuple[str, ...]
    tool: str = ""  # the tool that the text calls; empty: the text is the response itself
    is_named: bool = False  # the request named the tool, so the finish reason is ``stop``, as vLLM's is


def script_of(body: Mapping[str, Any], last_text: str) -> Script | None:
    """Return what the request forces: a tool call, JSON by schema, or JSON; None where the engine may write freely.

    A tool is called when ``tool_choice`` says so or, where that is open, when the last message names a tool.
    """
    tool = _tool_of(body, last_text)
    if tool is not None:
        arguments = orjson.dumps(instance_of(tool.get("parameters") or {"type": "object"})).decode()
        named = isinstance(body.get("tool_choice"), dict)
        return Script(pieces=pieces_of(arguments), tool=str(tool["name"]), is_named=named)
    asked = body.get("response_format")
    kind = asked.get("type") if isinstance(asked, dict) else None
    if kind == "json_object":
        return Script(pieces=pieces_of('{"boat":true}'))
    if kind == "json_schema" and isinstance(asked, dict):
        schema = (asked.get("json_schema") or {}).get("schema") or {}
        return Script(pieces=pieces_of(orjson.dumps(instance_of(schema)).decode()))
    return None


def pieces_of(text: str) -> tuple[str, ...]:
    """Cut the text into words and signs; joined, they are the text again."""
    return tuple(_PIECE.findall(text))


def instance_of(schema: Mapping[str, Any]) -> Any:
    """Return the smallest plain value that fits a JSON schema; references within it are followed."""
    return _instance(schema, schema, _MAX_DEPTH)


def _tool_of(body: Mapping[str, Any], last_text: str) -> dict[str, Any] | None:
    tools = [_function(tool) for tool in body.get("tools") or () if isinstance(tool, dict)]
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        name = _function(choice).get("name")
        return next((tool for tool in tools if tool.get("name") == name), None)
    if not tools or choice == "none":
        return None
    if choice == "required":
        return tools[0]
    return next((tool for tool in tools if str(tool.get("name")) in last_text.split()), None)


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    inner = tool.get("function", tool)
    return dict(inner) if isinstance(inner, dict) else {}


def _instance(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth == 0:
        return None
    if "$ref" in schema:
        return _instance(_referred(str(schema["$ref"]), root), root, depth - 1)
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return _instance(schema[name][0], root, depth - 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    return _plain(schema, root, depth)


def _plain(schema: dict[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "null")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "object":
            return dict(_members(schema, root, depth))
        case "array":
            return [_instance(schema.get("items", {}), root, depth - 1)] * max(1, schema.get("minItems", 0))
        case "string":
            return VOCABULARY[4].ljust(schema.get("minLength", 0), "t")
        case "integer" | "number":
            return schema.get("minimum", 7)
        case "boolean":
            return True
    return None


def _members(schema: dict[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    members = schema.get("properties") or {}
    for name, inner in members.items():
        if name in schema.get("required", members):
            yield name, _instance(inner, root, depth - 1)


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    value: Any = root
    for part in reference.removeprefix("#/").split("/"):
        value = value.get(part, {}) if isinstance(value, dict) else {}
    return value
