"""Documents and events of the fake engine's Responses API, in the order and shape in which vLLM sends them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from longboat.engines.fake_requests import Choice, Request

__all__ = ("ResponseEvents", "response_document", "response_item")


def response_document(response_id: str, body: Mapping[str, Any], request: Request, model: str) -> dict[str, Any]:
    """A response that has not begun to answer."""
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


def response_item(choice: Choice, status: str) -> dict[str, Any]:
    """The answer as an item of ``output``. ``in_progress``: before its first word."""
    begun = status != "in_progress"
    if choice.tool:
        arguments = choice.text if begun else ""
        ids = {"id": f"fc_{choice.call_id[14:]}", "call_id": choice.call_id}
        return {"type": "function_call", **ids, "name": choice.tool, "arguments": arguments, "status": status}
    content = [_part(choice.text)] if begun else []
    return {"id": _item_id(choice), "content": content, "role": "assistant", "status": status, "type": "message"}


class ResponseEvents:
    """Numbers the events of one response."""

    def __init__(self) -> None:
        self._number = 0

    def openings(self, document: Mapping[str, Any], choice: Choice) -> Iterator[bytes]:
        yield self._event("response.created", response=document)
        yield self._event("response.in_progress", response=document)
        yield self._event("response.output_item.added", item=response_item(choice, "in_progress"), output_index=0)
        if not choice.tool:
            yield self._event("response.content_part.added", **_at(choice), part=_part(""))

    def delta(self, choice: Choice, text: str) -> bytes:
        if choice.tool:
            kind = "response.function_call_arguments.delta"
            return self._event(kind, delta=text, item_id=response_item(choice, "completed")["id"], output_index=0)
        return self._event("response.output_text.delta", **_at(choice), delta=text, logprobs=[])

    def endings(self, document: Mapping[str, Any], choice: Choice) -> Iterator[bytes]:
        item = response_item(choice, "completed")
        if choice.tool:
            fields = {"arguments": choice.text, "name": choice.tool, "item_id": item["id"], "output_index": 0}
            yield self._event("response.function_call_arguments.done", **fields)
        else:
            yield self._event("response.output_text.done", **_at(choice), text=choice.text, logprobs=[])
            yield self._event("response.content_part.done", **_at(choice), part=_part(choice.text))
        yield self._event("response.output_item.done", item=item, output_index=0)
        yield self._event("response.completed", response=document)

    def _event(self, kind: str, **fields: Any) -> bytes:
        document = {**fields, "sequence_number": self._number, "type": kind}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(document))


def _item_id(choice: Choice) -> str:
    return f"msg_{choice.nonce}"


def _at(choice: Choice) -> dict[str, Any]:
    return {"content_index": 0, "item_id": _item_id(choice), "output_index": 0}


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
