"""What a JSON request body asks for, and the only places where its bytes are changed.

Spliced places of requests (everything else is forwarded byte for byte):

1. ``model``: the value, when the client used another name than the engine does (aliases, canaries, fallbacks).
2. ``stream_options``: ``include_usage`` for chat and completion streams whose client did not ask for usage;
   ``usage.py`` takes the extra event out of the answer again.
3. ``cache_salt``: the tenant's own, where the engine's request has that field.

A new member is put before the first one. Where a member's value changes, the members are written anew in their order
and every other value keeps its bytes; only white space between members goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from longboat.gateway.api import prompt_size
from longboat.gateway.api.body_fields import BodyKind, Facts
from longboat.gateway.http.strict_json import BodyError, decode_object

__all__ = ("FLEET_FIELDS", "BodyError", "BodyKind", "Facts", "read_facts", "splice")

FLEET_FIELDS = frozenset(
    (
        "cache_salt",  # whose prefix cache is shared
        "data_parallel_rank",  # which part of an engine answers
        "routed_dp_rank",
        "ec_transfer_params",  # where caches are fetched from and sent to: addresses of other engines
        "kv_transfer_params",
        "nvext",
        "priority",  # who goes first in an engine
        "prior",  # tokens of an answer that another engine began
        "request_id",  # names of requests and stored responses; x-request-id is the client's
        "rid",
        "vllm_xargs",  # arguments of an engine's extensions, transfers among them
    )
)
"""Top-level fields that only the fleet may send to its engines, by vLLM's and SGLang's request models."""

_FLEET_PREFIXES = ("bootstrap_", "disagg_", "longboat_")
_COMMON_FIELDS = frozenset(
    (
        *(
            "model",
            "messages",
            "prompt",
            "input",
            "system",
            "stream",
            "stream_options",
            "max_tokens",
            "user",
            "n",
            "stop",
        ),
        *("max_completion_tokens", "max_output_tokens", "temperature", "top_p", "seed", "tools", "tool_choice"),
    )
)


class _Rules:
    """What one kind of body has.

    limits: fields that bound the completion, the first that is there counts; empty: nothing is generated
    limit_tokens: what counts where none is there; salted, options: it has ``cache_salt``, ``stream_options``
    prompts: the field that may hold several prompts
    """

    __slots__ = ("chars", "limit_tokens", "limits", "options", "prompts", "salted")

    def __init__(
        self,
        chars: Callable[[dict[str, Any]], int],
        *limits: str,
        limit_tokens: int | None = None,
        salted: bool = True,
        options: bool = False,
        prompts: str = "",
    ) -> None:
        self.chars = chars
        self.limits = limits
        self.limit_tokens = limit_tokens
        self.salted = salted
        self.options = options
        self.prompts = prompts


_COMPLETION_TOKENS = 16  # the default of OpenAI's completions, and of engines
_RULES = {
    BodyKind.CHAT: _Rules(prompt_size.chat_chars, "max_completion_tokens", "max_tokens", options=True),
    BodyKind.COMPLETIONS: _Rules(
        prompt_size.completion_chars, "max_tokens", limit_tokens=_COMPLETION_TOKENS, options=True, prompts="prompt"
    ),
    BodyKind.RESPONSES: _Rules(prompt_size.responses_chars, "max_output_tokens"),
    BodyKind.MESSAGES: _Rules(prompt_size.messages_chars, "max_tokens"),
    BodyKind.EMBEDDINGS: _Rules(prompt_size.pooling_chars),
    BodyKind.POOLING: _Rules(prompt_size.pooling_chars),
    BodyKind.RERANK: _Rules(prompt_size.rerank_chars),
    BodyKind.SCORE: _Rules(prompt_size.score_chars),
    BodyKind.COUNT_TOKENS: _Rules(prompt_size.messages_chars, salted=False),
    BodyKind.TOKENIZE: _Rules(prompt_size.tokenize_chars, salted=False),
    BodyKind.DETOKENIZE: _Rules(prompt_size.detokenize_chars, salted=False),
}


def read_facts(body: bytes, kind: BodyKind, *, refuse_fleet_fields: bool, may_salt: bool = False) -> Facts:
    """Reads a body once.

    refuse_fleet_fields: the request comes from a client, so fields that only the fleet sends are errors
    may_salt: except ``cache_salt``, for where nothing keeps tenants apart
    Raises BodyError: not one JSON object in UTF-8, too deep, a duplicate key, no model, a fleet field, or a field of
    another type than engines take (they would read ``"stream":1`` as true).
    """
    document = decode_object(body)
    if refuse_fleet_fields:
        _refuse_fleet_fields(document, may_salt=may_salt)
    rules = _RULES[kind]
    facts = Facts()
    facts.document = document
    facts.kind = kind
    facts.model = _model(document)
    facts.user = _user(document)
    facts.prompt_chars = chars = rules.chars(document)
    facts.num_prompt_tokens_estimate = (chars + 3) // 4
    if rules.limits:
        _read_generation(facts, document, rules)
    else:
        facts.stream = facts.wants_usage = facts.usage_addable = False
        facts.max_tokens, facts.n = 0, 1
    return facts


def splice(body: bytes, facts: Facts, *, model: str | None, add_usage: bool, cache_salt: str | None) -> bytes:
    """The body that the engine gets.

    model: the engine's name for the model; None leaves the client's
    add_usage: ask for usage where ``facts.usage_addable``; elsewhere this does nothing
    cache_salt: replaces whatever the client sent, where requests of this kind have the field; None leaves it. vLLM
    takes 1 to 128 characters, none of them ``@``, ``/``, backslash or NUL.
    """
    new: dict[str, msgspec.Raw] = {}
    document = facts.document
    if model is not None and model != facts.model:
        new["model"] = msgspec.Raw(orjson.dumps(model))
    if add_usage and facts.usage_addable:
        new["stream_options"] = _options_with_usage(document)
    if cache_salt is not None and _RULES[facts.kind].salted:
        new["cache_salt"] = msgspec.Raw(orjson.dumps(cache_salt))
    if not new:
        return body
    if document.keys().isdisjoint(new):
        first = body.index(b"{") + 1
        return b"".join((msgspec.json.encode(new)[:-1], b",", body[first:]))
    return msgspec.json.encode(_MEMBERS.decode(body) | new)


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_JUST_USAGE = msgspec.Raw(b'{"include_usage":true}')


def _read_generation(facts: Facts, document: dict[str, Any], rules: _Rules) -> None:
    facts.stream = stream = _flag(document, "stream")
    facts.wants_usage = facts.usage_addable = False
    if stream and rules.options:
        options = document.get("stream_options")
        if options is not None and type(options) is not dict:
            raise BodyError("'stream_options' must be an object.", "invalid_type", "stream_options")
        facts.wants_usage = options is not None and _flag(options, "include_usage")
        facts.usage_addable = not facts.wants_usage
    facts.max_tokens = rules.limit_tokens
    for name in rules.limits:
        if name in document:
            facts.max_tokens = _integer(document, name)
            if facts.max_tokens is not None:
                break
    choices = _integer(document, "n") if "n" in document else None
    facts.n = max(choices or 1, 1)
    if rules.prompts:
        facts.n *= prompt_size.num_prompts(document.get(rules.prompts))


def _options_with_usage(document: dict[str, Any]) -> msgspec.Raw:
    options = document.get("stream_options")
    if not options:
        return _JUST_USAGE
    # Without include_usage it does nothing; with it, every event would carry usage that nobody asked for.
    kept = {name: value for name, value in options.items() if name != "continuous_usage_stats"}
    return msgspec.Raw(orjson.dumps(kept | {"include_usage": True}))


def _refuse_fleet_fields(document: dict[str, Any], *, may_salt: bool) -> None:
    if document.keys() <= _COMMON_FIELDS:
        return
    for name in document:
        if (name in FLEET_FIELDS or name.startswith(_FLEET_PREFIXES)) and not (may_salt and name == "cache_salt"):
            message = f"{name[:100]!r} is a field that only the fleet sends to its engines. Leave it out."
            raise BodyError(message, "fleet_field", name[:100])


def _model(document: dict[str, Any]) -> str:
    model = document.get("model")
    if type(model) is not str or not model:
        raise BodyError(
            "'model' must be a string that names a model. GET /v1/models lists them.", "model_missing", "model"
        )
    return model


def _user(document: dict[str, Any]) -> str:
    user = document.get("user")
    if user is None and type(metadata := document.get("metadata")) is dict:
        user = metadata.get("user_id")
    return user if type(user) is str else ""


def _flag(document: dict[str, Any], name: str) -> bool:
    value = document.get(name)
    if value is None or type(value) is bool:
        return bool(value)
    raise BodyError(f"{name!r} must be true or false.", "invalid_type", name)


def _integer(document: dict[str, Any], name: str) -> int | None:
    value = document[name]
    if value is None or type(value) is int:
        return value
    raise BodyError(f"{name!r} must be an integer.", "invalid_type", name)
