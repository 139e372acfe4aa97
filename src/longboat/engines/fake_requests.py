"""Requests to the fake engine: from an OpenAI body to the jobs it asks for."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from longboat.engines.fake_engine import Job
from longboat.engines.fake_faults import fault_from, fault_in_header
from longboat.engines.fake_scripts import Script, script_of
from longboat.engines.fake_tokens import StopFilter, encode

__all__ = (
    "Choice",
    "RefusedError",
    "Request",
    "chat_prompt",
    "checked_model",
    "decoded",
    "request_from",
    "request_of",
    "text_of",
)

_MAX_CHOICES = 128


class RefusedError(Exception):
    """The request is answered with ``status`` and this message; nothing was started. ``param``: the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


@dataclass(slots=True)
class Choice:
    """One answer of a request while it grows."""

    index: int
    job: Job
    stops: StopFilter
    tool: str = ""
    is_named: bool = False
    num_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)

    @property
    def is_stopped(self) -> bool:
        return self.stops.matched is not None

    @property
    def is_complete(self) -> bool:
        return self.is_stopped or self.num_tokens >= self.job.length_tokens

    @property
    def finish_reason(self) -> str | None:
        if not self.is_complete:
            return None
        if self.job.is_cut and not self.is_stopped:
            return "length"
        return "tool_calls" if self.tool and not self.is_named and not self.is_stopped else "stop"

    @property
    def call_id(self) -> str:
        """Id of the tool call that this answer is."""
        return f"chatcmpl-tool-{self.job.digest:016x}{self.index:x}"

    def take(self, batch: Sequence[int]) -> str:
        """Add new tokens; the text that may go out for them."""
        new = "".join(self.job.piece_at(token, self.num_tokens + offset) for offset, token in enumerate(batch))
        self.num_tokens += len(batch)
        self.token_ids.extend(batch)
        out = self.stops.feed(new)
        if self.is_complete:
            out += self.stops.flush()
        self.text += out
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A completion request, decoded. ``top_logprobs``: how many alternatives of each token are told; None: nothing."""

    request_id: str
    is_chat: bool
    is_streamed: bool
    includes_usage: bool
    returns_token_ids: bool
    prompt_tokens: int
    created: int
    top_logprobs: int | None
    choices: tuple[Choice, ...]


def request_from(model: str, is_chat: bool, headers: Mapping[str, str], raw: bytes) -> Request:
    """Decode a body for the engine that serves ``model``. Raises RefusedError, FaultError."""
    return request_of(model, is_chat, headers, checked_model(model, decoded(raw)))


def request_of(model: str, is_chat: bool, headers: Mapping[str, str], body: Mapping[str, Any]) -> Request:
    """The request in a decoded body. Raises RefusedError, FaultError."""
    prompts = [chat_prompt(body)] if is_chat else _completion_prompts(body)
    options = body.get("stream_options") or {}
    return Request(
        request_id=f"{'chatcmpl' if is_chat else 'cmpl'}-{os.urandom(8).hex()}",
        is_chat=is_chat,
        is_streamed=bool(body.get("stream")),
        includes_usage=bool(isinstance(options, dict) and options.get("include_usage")),
        returns_token_ids=bool(body.get("return_token_ids")),
        prompt_tokens=sum(map(len, prompts)),
        created=int(time.time()),
        top_logprobs=_top_logprobs(body, is_chat),
        choices=_choices(body, headers, prompts),
    )


def checked_model(model: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body, where it names ``model`` or none. Raises RefusedError."""
    if body.get("model") not in (model, None):
        raise RefusedError(404, f"The model `{body['model']}` does not exist.", "model")
    return body


def decoded(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises RefusedError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RefusedError(400, "the body is not a JSON object")
    return value


def chat_prompt(body: Mapping[str, Any]) -> tuple[int, ...]:
    """Token ids of a chat: every message with its role in front. Raises RefusedError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages is a list with at least one message")
    return tuple(token for message in messages for token in encode(_message_text(message)))


def _message_text(message: object) -> str:
    if not isinstance(message, dict) or "role" not in message:
        raise RefusedError(400, "a message is an object with a role")
    return f"<{message['role']}> {text_of(message.get('content'))}"


def text_of(content: object) -> str:
    """The words in a message's content: a text, or the texts of its parts."""
    if isinstance(content, list):
        return " ".join(text_of(part.get("text", part.get("content"))) for part in content if isinstance(part, dict))
    return str(content or "")


def _completion_prompts(body: Mapping[str, object]) -> list[tuple[int, ...]]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [encode(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(token, int) for token in prompt):
            return [tuple(prompt)]
        if all(isinstance(text, str) for text in prompt):
            return [encode(text) for text in prompt]
        if all(isinstance(ids, list) and all(isinstance(token, int) for token in ids) for ids in prompt):
            return [tuple(ids) for ids in prompt]
    raise RefusedError(400, "prompt is a text, a list of texts, token ids, or a list of lists of token ids")


def _choices(
    body: Mapping[str, object], headers: Mapping[str, str], prompts: Sequence[tuple[int, ...]]
) -> tuple[Choice, ...]:
    num = _count(body, "n", 1)
    if num * len(prompts) > _MAX_CHOICES:
        raise RefusedError(400, f"n times the number of prompts is above {_MAX_CHOICES}")
    limit = _limit(body)
    fault = fault_from(body["longboat_fault"]) if "longboat_fault" in body else fault_in_header(headers)
    stops = _stops(body)
    script = _script(body) or Script(pieces=())
    pairs = [(prompt, choice) for prompt in prompts for choice in range(num)]
    jobs = (
        Job(prompt=prompt, num_tokens=limit, choice=choice, prior=_prior(body), script=script.pieces, fault=fault)
        for prompt, choice in pairs
    )
    return tuple(Choice(index, job, StopFilter(stops), script.tool, script.is_named) for index, job in enumerate(jobs))


def _script(body: Mapping[str, Any]) -> Script | None:
    messages = body.get("messages")
    return script_of(body, text_of(messages[-1].get("content"))) if messages else None


def _top_logprobs(body: Mapping[str, object], is_chat: bool) -> int | None:
    if not body.get("logprobs"):
        return None
    value = body.get("top_logprobs") or 0 if is_chat else body["logprobs"]
    if not isinstance(value, int) or not 0 <= value <= 20:
        raise RefusedError(400, "the number of logprobs is from 0 to 20", "top_logprobs" if is_chat else "logprobs")
    return int(value)


def _limit(body: Mapping[str, object]) -> int | None:
    """Tokens of the answer. Completions have a default of 16, chats end by themselves."""
    for name in ("max_completion_tokens", "max_tokens"):
        if body.get(name) is not None:
            return _count(body, name, 1)
    return None if "messages" in body else 16


def _count(body: Mapping[str, object], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RefusedError(400, f"{name} is a whole number, 1 or more")
    return value


def _stops(body: Mapping[str, object]) -> tuple[str, ...]:
    stop = body.get("stop") or ()
    if isinstance(stop, str):
        return (stop,)
    if isinstance(stop, list | tuple) and all(isinstance(text, str) for text in stop):
        return tuple(stop)
    raise RefusedError(400, "stop is a text or a list of texts")


def _prior(body: Mapping[str, object]) -> tuple[int, ...]:
    """Token ids in ``vllm_xargs.prior``: an answer that another replica began."""
    extra = body.get("vllm_xargs")
    prior = extra.get("prior", ()) if isinstance(extra, dict) else ()
    if not isinstance(prior, list | tuple) or not all(isinstance(token, int) for token in prior):
        raise RefusedError(400, "vllm_xargs.prior is a list of token ids")
    return tuple(prior)
