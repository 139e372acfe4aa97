"""Makes documents and items of the fake engine's Responses API, in the shape in which vLLM sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat_fake.api.requests import Choice, Request

__all__ = ("item_id", "item_kinds", "item_part", "response_document", "response_item", "response_items")


def response_document(response_id: str, body: Mapping[str, Any], request: Request, model: str) -> dict[str, Any]:
    """Return a response that has no output yet."""
    echoed = ("instructions", "metadata", "previous_response_id", "reasoning", "text", "user", "max_output_tokens")
    return {
        "id": response_id,
        "created_at": request.created,
        "incomplete_details": None,
        **{name: body.get(name) for name in echoed},
        "model": model,
        "object": "response",
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": body.get("temperature", 1.0),
        "tool_choice": body.get("tool_choice", "auto") if body.get("tools") else "none",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "background": False,
        "max_tool_calls": None,
        "prompt": None,
        "service_tier": "auto",
        "status": "in_progress",
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": None,
    }


def item_kinds(choice: Choice) -> list[str]:
    """Return the kinds of items so far: reasoning, then a message or a tool call."""
    answer = "function_call" if choice.tool else "message"
    has_answer = not choice.reasoning or choice.num_tokens > choice.job.num_reasoning
    return [*(["reasoning"] if choice.reasoning else []), *([answer] if has_answer else [])]


def response_items(choice: Choice) -> list[dict[str, Any]]:
    """Return the complete ``output``."""
    return [response_item(choice, kind, "completed") for kind in item_kinds(choice)]


def response_item(choice: Choice, kind: str, status: str) -> dict[str, Any]:
    """Return one item of ``output``. ``in_progress``: the item before its first word."""
    begun = status != "in_progress"
    fields = {"id": item_id(choice, kind), "type": kind, "status": status}
    if kind == "function_call":
        call = {"call_id": choice.call_id, "name": choice.tool, "arguments": choice.text if begun else ""}
        return {**fields, **call}
    content = [item_part(choice, kind)] if begun else []
    if kind == "reasoning":
        return {**fields, "summary": [], **({"content": content} if begun else {})}
    return {**fields, "content": content, "role": "assistant"}


def item_id(choice: Choice, kind: str) -> str:
    return {"reasoning": "rs_", "function_call": "fc_", "message": "msg_"}[kind] + choice.nonce


def item_part(choice: Choice, kind: str) -> dict[str, Any]:
    """Return the content of an item."""
    if kind == "reasoning":
        return {"text": choice.reasoning, "type": "reasoning_text"}
    return {"annotations": [], "text": choice.text, "type": "output_text", "logprobs": None}
