"""Reads requests to the fake engine: from an OpenAI body to the jobs that it asks for."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from longboat_fake.engine.faults import fault_from, fault_in_header
from longboat_fake.engine.generator import Job
from longboat_fake.engine.scripts import Script, script_of
from longboat_fake.engine.tokens import StopFilter, encode
from longboat_fake.http.carry import Terms, refuse_uncarried
from longboat_fake.http.refusal import RefusedError

__all__ = (
    "Choice",
    "RefusedError",
    "Request",
    "chat_prompt",
    "checked_model",
    "decoded",
    "prompts_in",
    "request_of",
    "text_of",
)

_MAX_CHOICES = 128
_SEED_END = 1 << 63


@dataclass(slots=True)
class Choice:
    """One choice of a response while it grows."""

    index: int
    job: Job
    stops: StopFilter
    tool: str = ""
    is_named: bool = False
    num_tokens: int = 0
    text: str = ""
    reasoning: str = ""
    nonce: str = field(default_factory=lambda: os.urandom(8).hex())
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
        """Id of the tool call in this choice; different each time, as engines make it."""
        return f"chatcmpl-tool-{self.nonce}"

    def take(self, batch: Sequence[int]) -> str:
        """Add new tokens, all of them reasoning or all of them text; return the text that may be sent for them."""
        is_reasoning = self.num_tokens < self.job.num_reasoning
        new = "".join(self.job.piece_at(token, self.num_tokens + offset) for offset, token in enumerate(batch))
        self.num_tokens += len(batch)
        self.token_ids.extend(batch)
        if is_reasoning:
            self.reasoning += new
            return new
        out = self.stops.feed(new)
        if self.is_complete:
            out += self.stops.flush()
        self.text += out
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A decoded completion request."""

    request_id: str
    is_chat: bool
    is_streamed: bool
    includes_usage: bool
    returns_token_ids: bool
    prompt_tokens: int
    created: int
    top_logprobs: int | None  # number of alternatives to report of each token; None: no log-probabilities
    choices: tuple[Choice, ...]
    # system fingerprint: shows the seed where the request named none, so that tests can repeat it
    fingerprint: str | None = None


def request_of(is_chat: bool, headers: Mapping[str, str], body: Mapping[str, Any], terms: Terms) -> Request:
    """Decode a body into a request. Raises RefusedError, FaultError."""
    if terms.priors is not None:
        refuse_uncarried(body)
    prompts = [chat_prompt(body)] if is_chat else prompts_in(body, "prompt")
    seed = _seed(body, terms)
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
        choices=_choices(body, headers, prompts, terms, seed),
        fingerprint=None if seed is None or body.get("seed") is not None else f"fake-seed-{seed}",
    )


def checked_model(model: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the body where it names ``model`` or no model. Raises RefusedError."""
    if body.get("model") not in (model, None):
        raise RefusedError(404, f"The model `{body['model']}` does not exist.", "model")
    return body


def decoded(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raises RefusedError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RefusedError(400, "the body must be a JSON object")
    return value


def chat_prompt(body: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the token ids of a chat: every message with its role in front. Raises RefusedError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages must be a list with at least one message")
    return tuple(token for message in messages for token in encode(_message_text(message)))


def _message_text(message: object) -> str:
    if not isinstance(message, dict) or "role" not in message:
        raise RefusedError(400, "a message must be an object with a role")
    return f"<{message['role']}> {text_of(message.get('content'))}"


def text_of(content: object) -> str:
    """Return the words in a message's content: a text, or the texts of its parts."""
    if isinstance(content, list):
        return " ".join(text_of(part.get("text", part.get("content"))) for part in content if isinstance(part, dict))
    return str(content or "")


def prompts_in(body: Mapping[str, object], name: str) -> list[tuple[int, ...]]:
    """Return the token ids of each text or list of ids in the field ``name``. Raises RefusedError."""
    value = body.get(name)
    if isinstance(value, str):
        return [encode(value)]
    if isinstance(value, list) and value:
        if all(isinstance(token, int) for token in value):
            return [tuple(value)]
        if all(isinstance(text, str) for text in value):
            return [encode(text) for text in value]
        if all(isinstance(ids, list) and all(isinstance(token, int) for token in ids) for ids in value):
            return [tuple(ids) for ids in value]
    raise RefusedError(400, f"{name} must be a text, texts, token ids, or lists of token ids", name)


def _choices(
    body: Mapping[str, object],
    headers: Mapping[str, str],
    prompts: Sequence[tuple[int, ...]],
    terms: Terms,
    seed: int | None,
) -> tuple[Choice, ...]:
    num = _count(body, "n", 1)
    if num * len(prompts) > _MAX_CHOICES:
        raise RefusedError(400, f"n times the number of prompts is {num * len(prompts)}; the limit is {_MAX_CHOICES}")
    limit = _limit(body)
    fault = fault_from(body["longboat_fault"]) if "longboat_fault" in body else fault_in_header(headers)
    stops = _stops(body)
    script = _script(body) or Script(pieces=())
    jobs = [
        Job(
            prompt=prompt,
            num_tokens=limit,
            choice=index % num if seed is None else 0,
            seed=None if seed is None else seed + index % num,
            prior=terms.prior(index),
            is_replayed=terms.is_replayed,
            script=script.pieces,
            num_reasoning=_num_reasoning(body, prompt),
            fault=fault,
            adapter=terms.adapter,
            salt=str(body.get("cache_salt") or ""),
            named=terms.named if index == 0 else None,
        )
        for index, prompt in enumerate(prompt for prompt in prompts for _ in range(num))
    ]
    for job in jobs:
        if len(job.prior) >= job.length_tokens:
            raise RefusedError(400, f"{len(job.prior)} tokens are carried, but the response has {job.length_tokens}")
    return tuple(Choice(index, job, StopFilter(stops), script.tool, script.is_named) for index, job in enumerate(jobs))


def _seed(body: Mapping[str, Any], terms: Terms) -> int | None:
    """Return the request's seed, the gateway's, or a random one where a temperature is set; None: greedy.

    Raises RefusedError: vLLM takes seeds of 64 bits only.
    """
    seed = body.get("seed")
    if seed is not None and not -_SEED_END <= seed < _SEED_END:
        raise RefusedError(400, f"seed must be a whole number of 64 bits, but is {seed}", "seed")
    if body.get("temperature") == 0:
        return None
    if seed is not None:
        return int(seed)
    if terms.seed is None and body.get("temperature"):
        return random.getrandbits(31)
    return terms.seed


def _num_reasoning(body: Mapping[str, Any], prompt: tuple[int, ...]) -> int:
    """Return the number of reasoning tokens: 4 to 19 where the request turns reasoning on."""
    template = body.get("chat_template_kwargs")
    asked = isinstance(template, dict) and template.get("enable_thinking") is True
    return 4 + sum(prompt) % 16 if asked or body.get("reasoning_effort") not in (None, "none") else 0


def _script(body: Mapping[str, Any]) -> Script | None:
    messages = body.get("messages")
    return script_of(body, text_of(messages[-1].get("content"))) if messages else None


def _top_logprobs(body: Mapping[str, object], is_chat: bool) -> int | None:
    if not body.get("logprobs"):
        return None
    value = body.get("top_logprobs") or 0 if is_chat else body["logprobs"]
    if not isinstance(value, int) or not 0 <= value <= 20:
        raise RefusedError(
            400, "the number of logprobs must be from 0 to 20", "top_logprobs" if is_chat else "logprobs"
        )
    return int(value)


def _limit(body: Mapping[str, object]) -> int | None:
    """Return the limit of the response's tokens. Completions default to 16; chats end naturally."""
    for name in ("max_completion_tokens", "max_tokens"):
        if body.get(name) is not None:
            return _count(body, name, 1)
    return None if "messages" in body else 16


def _count(body: Mapping[str, object], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RefusedError(400, f"{name} must be a whole number, 1 or more")
    return value


def _stops(body: Mapping[str, object]) -> tuple[str, ...]:
    stop = body.get("stop") or ()
    if isinstance(stop, str):
        return (stop,)
    if isinstance(stop, list | tuple) and all(isinstance(text, str) for text in stop):
        return tuple(stop)
    raise RefusedError(400, "stop must be a text or a list of texts")
