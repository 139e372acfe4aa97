"""The answer to a request that asked for no stream, made of one: as vLLM 0.32 would have given it whole."""

from __future__ import annotations

from typing import Any

from longboat.gateway.stitch_parts import DONE, Event, StitchError, decoded, encoded, events_of
from longboat.gateway.usage import AnswerKind

__all__ = ("gather",)

_Json = dict[str, Any]

# Fields that a whole answer has where a stream has none, in the engine's order.
_CHAT = ("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage")
_CHAT_OWN = (
    "prompt_logprobs",
    "prompt_token_ids",
    "prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
)
_COMPLETION_OWN = ("kv_transfer_params", "ec_transfer_params", "metrics")
_MESSAGE = ("role", "content", "refusal", "annotations", "audio", "function_call")
_USAGE = ("prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details")
_BLOCK_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def gather(kind: AnswerKind, events: bytes) -> bytes:
    """The body that the engine would have answered with. events: one complete stream, without comments; one of chat
    or completions must have been asked for its usage (``include_usage``).

    What a stream does not tell is as the engine gives it most often: content of a chat that only calls tools is null.

    :raises StitchError: the stream is not complete, or tells of an error
    """
    told = [event for event in events_of(events) if event.data]
    try:
        if kind is AnswerKind.RESPONSES_EVENTS:
            return encoded(_response(told))
        if kind is AnswerKind.ANTHROPIC_EVENTS:
            return encoded(_message([decoded(event.data) for event in told]))
        return encoded(_choices(told))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise StitchError(f"an event is of no known shape: {error!r}") from error


def _choices(told: list[Event]) -> _Json:
    if not told or told[-1].data != DONE:
        raise StitchError("the stream has no end")
    chunks = [decoded(event.data) for event in told[:-1]]
    if any("error" in chunk for chunk in chunks):
        raise StitchError("the stream tells of an error")
    usage = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    choices: dict[int, list[_Json]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            choices.setdefault(choice["index"], []).append(choice)
    if not usage or any(parts[-1].get("finish_reason") is None for parts in choices.values()):
        raise StitchError("the stream has no end")
    is_chat = chunks[0]["object"] == "chat.completion.chunk"
    make = _chat_choice if is_chat else _completion_choice
    answer: _Json = dict.fromkeys((*_CHAT, *(_CHAT_OWN if is_chat else _COMPLETION_OWN)))
    for chunk in chunks:
        answer.update((name, chunk[name]) for name in answer if chunk.get(name) is not None)
    answer["object"] = "chat.completion" if is_chat else "text_completion"
    answer["choices"] = [make(index, parts) for index, parts in sorted(choices.items())]
    answer["usage"] = {**dict.fromkeys(_USAGE), **usage[0]}
    return answer


def _chat_choice(index: int, parts: list[_Json]) -> _Json:
    message: _Json = dict.fromkeys(_MESSAGE)
    tools: dict[int, _Json] = {}
    texts: dict[str, list[str]] = {"reasoning": []}
    for part in parts:
        for name, value in part["delta"].items():
            if name == "role":
                message["role"] = value
            elif isinstance(value, str):
                texts.setdefault(name, []).append(value)
        for call in part["delta"].get("tool_calls") or ():
            _add_call(tools, call)
    if tools:
        message["tool_calls"] = [tools[number] for number in sorted(tools)]
    for name, pieces in texts.items():
        message[name] = "".join(pieces) or None
    if not tools and message["content"] is None and message["reasoning"] is None:
        message["content"] = ""
    logprobs = _joined_lists([part["logprobs"] for part in parts if part.get("logprobs")])
    return {"index": index, "message": message, "logprobs": logprobs, **_ending(parts), "routed_experts": None}


def _add_call(tools: dict[int, _Json], call: _Json) -> None:
    tool = tools.setdefault(call["index"], {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    tool["id"] = call.get("id") or tool["id"]
    function = call.get("function") or {}
    tool["function"]["name"] += function.get("name") or ""
    tool["function"]["arguments"] += function.get("arguments") or ""


def _completion_choice(index: int, parts: list[_Json]) -> _Json:
    text = "".join(part["text"] for part in parts)
    logprobs = _joined_lists([part["logprobs"] for part in parts if part.get("logprobs")])
    ending = _ending(parts)
    prompt = parts[0].get("prompt_token_ids") if ending["token_ids"] is not None else None
    own = {"prompt_logprobs": None, "prompt_token_ids": prompt, "routed_experts": None}
    return {"index": index, "text": text, "logprobs": logprobs, **ending, **own}


def _ending(parts: list[_Json]) -> _Json:
    ids = [one for part in parts for one in part.get("token_ids") or ()]
    last = parts[-1]
    return {
        "finish_reason": last["finish_reason"],
        "stop_reason": last.get("stop_reason"),
        "token_ids": ids if any(part.get("token_ids") is not None for part in parts) else None,
    }


def _joined_lists(parts: list[_Json]) -> _Json | None:
    """Objects of lists as one: each list is what the parts have of it, in order."""
    if not parts:
        return None
    return {name: [entry for part in parts for entry in part[name]] for name in parts[0]}


def _message(told: list[_Json]) -> _Json:
    if not told or told[-1].get("type") != "message_stop":
        raise StitchError("the stream has no end")
    answer: _Json = {}
    blocks: list[_Json] = []
    for event in told:
        kind = event["type"]
        if kind == "message_start":
            answer = event["message"]
        elif kind == "content_block_start":
            blocks.append(event["content_block"])
        elif kind == "content_block_delta":
            _add_to_block(blocks[event["index"]], event["delta"])
        elif kind == "message_delta":
            ending = {name: value for name, value in event["delta"].items() if value is not None}
            answer.update({**ending, "usage": event["usage"]})
    for block in blocks:
        if "json" in block:
            block["input"] = decoded(block.pop("json").encode("utf-8", "surrogatepass"))
    told_fields = {name: value for name, value in answer.items() if value is not None}
    return {**told_fields, "content": blocks or [{"type": "text", "text": ""}]}


def _add_to_block(block: _Json, delta: _Json) -> None:
    name, field = "json", "partial_json"
    if delta["type"] != "input_json_delta":
        name = field = _BLOCK_TEXTS[delta["type"]]
    block[name] = block.get(name, "") + delta[field]


def _response(told: list[Event]) -> _Json:
    last = decoded(told[-1].data) if told else {}
    if last.get("type") not in ("response.completed", "response.incomplete"):
        raise StitchError("the stream has no end")
    response: _Json = last["response"]
    return response
