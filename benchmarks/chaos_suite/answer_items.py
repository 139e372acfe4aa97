"""Answers of Anthropic's messages and of Responses: out of their typed events, and out of a whole body."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chaos_suite.answer_choices import usage_facts

__all__ = ("read_message_blocks", "read_messages", "read_response", "response_facts", "whole_message")

_SAID = ("text", "thinking", "partial_json")
_NAMELESS = ("id", "call_id", "signature", "encrypted_content")


def read_messages(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Facts of one message; what is wrong with the order of its events."""
    facts, wrongs = read_message_blocks(documents)
    kinds = [document["type"] for document in documents if document["type"] != "ping"]
    if kinds.count("message_start") != 1 or not kinds or kinds[0] != "message_start":
        wrongs.append("message_start does not come once and first")
    if kinds.count("message_stop") != 1 or kinds[-1:] != ["message_stop"]:
        wrongs.append("message_stop does not come once and last")
    for document in documents:
        if document["type"] == "message_delta":
            if "stop" in facts:
                wrongs.append("message_delta comes twice")
            facts["stop"] = [document["delta"].get("stop_reason"), document["delta"].get("stop_sequence")]
            facts["usage"] = usage_facts(document.get("usage") or {})
    return facts, wrongs


def read_message_blocks(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Blocks by their number; wrong is a delta outside of its block, and a block that opens out of turn."""
    facts: dict[str, Any] = {}
    wrongs: list[str] = []
    is_open, num_blocks = False, 0
    for document in documents:
        match document["type"]:
            case "content_block_start":
                if is_open or document["index"] != num_blocks:
                    wrongs.append(f"block {document['index']} opens out of turn")
                block = document["content_block"]
                facts[f"{num_blocks}.kind"] = [block["type"], block.get("name")]
                is_open, num_blocks = True, num_blocks + 1
            case "content_block_delta":
                if not is_open or document["index"] != num_blocks - 1:
                    wrongs.append("a delta comes outside of its block")
                said = "".join(document["delta"].get(name) or "" for name in _SAID)
                place = f"{document['index']}.said"
                facts[place] = facts.get(place, "") + said
            case "content_block_stop":
                if not is_open:
                    wrongs.append("a block ends twice")
                is_open = False
    return facts, wrongs


def whole_message(document: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a body."""
    facts: dict[str, Any] = {"stop": [document["stop_reason"], document.get("stop_sequence")]}
    facts["usage"] = usage_facts(document["usage"])
    for number, block in enumerate(document["content"]):
        facts[f"{number}.kind"] = [block["type"], block.get("name")]
        said = block.get("text") or block.get("thinking")
        facts[f"{number}.said"] = said if said is not None else json.dumps(block.get("input"))
    return facts


def read_response(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Facts of the response that the last event tells; wrong is what the events before it do not agree with."""
    wrongs = []
    numbers = [document.get("sequence_number") for document in documents]
    if numbers != list(range(len(numbers))):
        wrongs.append(f"events are not numbered from 0 without a gap: {_first_gap(numbers)}")
    ends = [d["response"] for d in documents if d["type"] in ("response.completed", "response.incomplete")]
    if len(ends) != 1:
        return {}, [*wrongs, f"the response is completed {len(ends)} times"]
    ids = {document["response"]["id"] for document in documents if "response" in document}
    if len(ids) > 1:
        wrongs.append(f"the response has {len(ids)} ids")
    wrongs += _unlike_deltas(documents, ends[0])
    return response_facts(ends[0]), wrongs


def response_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a response as a document."""
    facts: dict[str, Any] = {"status": document["status"], "usage": usage_facts(document.get("usage") or {})}
    for number, item in enumerate(document["output"]):
        facts[f"{number}"] = _without_ids(item)
    return facts


def _unlike_deltas(documents: Sequence[Mapping[str, Any]], response: Mapping[str, Any]) -> list[str]:
    """Items whose deltas do not add up to them, or whose ids differ from one event to the next."""
    said: dict[int, str] = {}
    ids: dict[int, set[str]] = {}
    for document in documents:
        if "output_index" in document:
            item_id = str(document.get("item_id") or (document.get("item") or {}).get("id"))
            ids.setdefault(document["output_index"], set()).add(item_id)
            if document["type"].endswith(".delta"):
                place = document["output_index"]
                said[place] = said.get(place, "") + document["delta"]
    wrongs = [f"item {number} has {len(found)} ids" for number, found in ids.items() if len(found) > 1]
    for number, item in enumerate(response["output"]):
        if said.get(number, "") != _text_of(item):
            wrongs.append(f"the deltas of item {number} are not its text")
        if ids.get(number, {item.get("id")}) != {item.get("id")}:
            wrongs.append(f"item {number} has another id at its end")
    return wrongs


def _text_of(item: Mapping[str, Any]) -> str:
    if "arguments" in item:
        return str(item["arguments"])
    return "".join(part.get("text", "") for part in item.get("content") or ())


def _without_ids(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _NAMELESS}


def _first_gap(numbers: Sequence[object]) -> str:
    for place, number in enumerate(numbers):
        if number != place:
            return f"{number} at place {place}"
    return "none"
