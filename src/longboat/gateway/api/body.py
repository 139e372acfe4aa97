"""What a JSON request body asks for, and the only places where its bytes are changed.

Spliced places of requests (everything else is forwarded byte for byte):

1. ``model``: the value, when the client used another name than the engine does (aliases, canaries, fallbacks).
2. ``stream_options``: ``include_usage`` for chat and completion streams whose client did not ask for usage;
   ``usage.py`` takes the extra event out of the answer again.
3. ``cache_salt``: the tenant's own, where the engine's request has that field.

A new member is put before the first one, and every other value keeps its bytes. Where a value changes in a body that
was decoded, the members are written again in their order: only white space between them goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
import orjson

from longboat.gateway.api import prompt_size
from longboat.gateway.api.body_fields import FLEET_FIELDS, BodyKind, Facts, fleet_field
from longboat.gateway.api.multipart import read_form, splice_form
from longboat.gateway.http.strict_json import BodyError, decode_object
from longboat.gateway.native.leaf_work import scan, spliced

__all__ = ("BodyError", "BodyKind", "Facts", "read_body", "read_facts", "splice", "top_fields")

_scan: Final = scan  # what is imported from C, compiled code would look up by its name each time
_spliced: Final = spliced
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
    """The fields that matter in one kind of body."""

    __slots__ = ("chars", "limit_tokens", "limits", "options", "prompts", "salted", "sampling")

    def __init__(
        self,
        chars: Callable[[dict[str, Any]], int],
        *limits: str,
        limit_tokens: int | None = None,
        salted: bool = True,
        options: bool = False,
        prompts: str = "",
        sampling: str = "",
    ) -> None:
        self.chars = chars  # counts the characters of the prompt
        # Fields that bound the completion, of which the first present one counts; empty: no tokens are generated.
        self.limits = limits
        self.limit_tokens = limit_tokens  # the limit where none of these fields is present
        self.salted = salted  # it has ``cache_salt``
        self.options = options  # it has ``stream_options``
        self.prompts = prompts  # the field that may hold several prompts
        self.sampling = sampling  # the object that holds the limits and ``n``; empty: they are at the top


_COMPLETION_TOKENS = 16  # the default of OpenAI's completions, and of engines
_TGI_TOKENS = 100  # TGI's default
_MAX_CHOICES: Final = 16_384  # what vLLM takes
_TGI_FIELDS = frozenset(("inputs", "model", "parameters", "stream"))
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
    BodyKind.BATCH: _Rules(prompt_size.chat_chars, "max_completion_tokens", "max_tokens", prompts="messages"),
    BodyKind.RENDER: _Rules(prompt_size.rendered_chars, salted=False),
    BodyKind.TGI: _Rules(
        prompt_size.inputs_chars, "max_new_tokens", limit_tokens=_TGI_TOKENS, sampling="parameters", salted=False
    ),
    BodyKind.GENERATE: _Rules(prompt_size.generate_chars, "max_tokens", options=True, sampling="sampling_params"),
}


def read_body(body: bytes, kind: BodyKind, *, keyed: bool, content_type: bytes, allowed: Collection[str] = ()) -> Facts:
    """Return what a client's request asks for.

    keyed: tenants are kept apart, so a client may not send ``cache_salt``; allowed: see ``read_facts``
    Raises BodyError: see ``read_facts`` and ``multipart.read_form``.
    """
    if kind is BodyKind.CHAT or kind is BodyKind.COMPLETIONS:
        facts = _scanned(body, kind, keyed=keyed)
        if facts is not None:
            return facts
    elif kind is BodyKind.FORM:
        return read_form(body, content_type, refuse_fleet_fields=True, allowed=allowed)
    return read_facts(body, kind, refuse_fleet_fields=True, may_salt=not keyed, allowed=allowed)


def _scanned(body: bytes, kind: BodyKind, *, keyed: bool) -> Facts | None:
    """Return what ``read_facts`` would return for an ordinary body, in a twentieth of the time; None for any other."""
    found = _scan(body, kind is BodyKind.COMPLETIONS, keyed)
    if found is None:
        return None
    facts = Facts()
    (
        facts.model, facts.stream, facts.wants_usage, facts.num_prompt_tokens_estimate, facts.prompt_chars,
        facts.max_tokens, facts.n, facts.user, spliceable, model_at, model_end,
    ) = found  # fmt: skip
    if facts.n > _MAX_CHOICES:
        return None
    facts.usage_addable = facts.stream and not facts.wants_usage
    if facts.usage_addable and not spliceable:
        return None  # what its options hold already must be known
    facts.model_at, facts.model_end = (model_at, model_end) if spliceable else (0, 0)
    facts.document = {}
    facts.form = None
    facts.kind = kind
    return facts


def top_fields(body: bytes, facts: Facts, names: frozenset[str]) -> dict[str, str]:
    """Return the top-level fields of these names that the body has, as text: what routing rules compare."""
    if facts.form is not None:
        values: dict[str, Any] = dict(facts.form.fields)
    elif facts.document:
        values = facts.document
    else:
        raw = _MEMBERS.decode(body)
        values = {name: orjson.loads(bytes(raw[name])) for name in names if name in raw}
    return {name: _as_text(values[name]) for name in names if name in values}


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def read_facts(
    body: bytes,
    kind: BodyKind,
    *,
    refuse_fleet_fields: bool,
    may_salt: bool = False,
    allowed: Collection[str] = (),
) -> Facts:
    """Read a body once.

    refuse_fleet_fields: the request comes from a client, so fields that only the fleet sends are errors
    may_salt: a client may send ``cache_salt`` anyway, because tenants are not kept apart
    allowed: further fields that the tenant may send (``allow_fields`` of the fleet file)
    Raises BodyError: not one JSON object in UTF-8, too deep, a duplicate key, no model, a fleet field, too many
    choices, or a field of another type than engines take (they would read ``"stream":1`` as true).
    """
    document = decode_object(body)
    if refuse_fleet_fields:
        allowed = (*allowed, "cache_salt") if may_salt else allowed
        _refuse_fleet_fields(_set_fields(document) if kind is BodyKind.GENERATE else document, allowed)
    if kind is BodyKind.TGI:
        _refuse_other_fields(document)
    rules = _RULES[kind]
    facts = Facts()
    facts.document = document
    facts.form = None
    facts.kind = kind
    facts.model_at = facts.model_end = 0
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
    """Return the body that the engine gets.

    model: the engine's name for the model; None keeps the client's
    add_usage: ask for usage where ``facts.usage_addable``; elsewhere this has no effect
    cache_salt: replaces the client's value, where requests of this kind have the field; None keeps it. vLLM takes 1 to
    128 characters, none of them ``@``, ``/``, backslash or NUL.
    """
    if facts.form is not None:
        return splice_form(body, facts, model=model, add_usage=add_usage)
    if facts.model_at:
        return _spliced_in_place(body, facts, model, add_usage=add_usage, cache_salt=cache_salt)
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
    if "model" not in new and document.keys().isdisjoint(new):
        first = body.index(b"{") + 1
        return b"".join((msgspec.json.encode(new)[:-1], b",", body[first:]))
    members = _MEMBERS.decode(body)
    return msgspec.json.encode({name: value for name, value in new.items() if name not in members} | members | new)


def _spliced_in_place(
    body: bytes, facts: Facts, model: str | None, *, add_usage: bool, cache_salt: str | None
) -> bytes:
    """Do what ``splice`` does with a body that was not decoded and has neither field, without decoding it."""
    new = b'"stream_options":{"include_usage":true},' if add_usage and facts.usage_addable else b""
    if cache_salt is not None:  # both kinds of bodies that are scanned have the field
        new = b'%b"cache_salt":%b,' % (new, _quoted(cache_salt))
    if model is not None and model != facts.model:
        return _spliced(body, new, facts.model_at - 1, facts.model_end + 1, _quoted(model))
    return _spliced(body, new, 0, 0, b"") if new else body


def _quoted(text: str) -> bytes:
    """Return a model's name or a salt as JSON. There are few of them, so they are kept."""
    found = _QUOTED.get(text)
    if found is None:
        if len(_QUOTED) >= _MAX_QUOTED:
            _QUOTED.clear()
        found = _QUOTED[text] = orjson.dumps(text)
    return found


_QUOTED: Final[dict[str, bytes]] = {}
_MAX_QUOTED: Final = 4096
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
    sampling = _object(document, rules.sampling) if rules.sampling else document
    facts.max_tokens = rules.limit_tokens
    for name in rules.limits:
        if name in sampling:
            facts.max_tokens = _integer(sampling, name)
            if facts.max_tokens is not None:
                break
    choices = _integer(sampling, "n") if "n" in sampling else None
    facts.n = max(choices or 1, 1)
    if rules.prompts:
        facts.n *= prompt_size.num_prompts(document.get(rules.prompts))
    if facts.n > _MAX_CHOICES:
        what = "'n' times the number of prompts" if rules.prompts else "'n'"
        raise BodyError(f"{what} is {facts.n}: at most {_MAX_CHOICES} choices are made.", "too_many_choices", "n")


def _options_with_usage(document: dict[str, Any]) -> msgspec.Raw:
    options = document.get("stream_options")
    if not options:
        return _JUST_USAGE
    # Without include_usage it has no effect; with it, every event would carry usage that no client asked for.
    kept = {name: value for name, value in options.items() if name != "continuous_usage_stats"}
    return msgspec.Raw(orjson.dumps(kept | {"include_usage": True}))


def _refuse_fleet_fields(document: dict[str, Any], allowed: Collection[str]) -> None:
    if document.keys() <= _COMMON_FIELDS:
        return
    for name in document:
        if (name in FLEET_FIELDS or name.startswith(_FLEET_PREFIXES)) and name not in allowed:
            raise fleet_field(name[:100])


def _refuse_other_fields(document: dict[str, Any]) -> None:
    """Refuse what TGI does not read: other engines have paths of these names, with fields that clients may not send."""
    for name in document:
        if name not in _TGI_FIELDS:
            raise BodyError(
                f"{name[:100]!r} cannot be sent on this path: it takes inputs, parameters and model.",
                "unknown_field",
                name[:100],
            )


def _set_fields(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a tokens-in request that have an effect, with those inside its sampling parameters.

    Engines write such requests themselves (``…/render``) with every field at its default, and take ``request_id`` only
    where there is no X-Request-Id.
    """
    found = {name: value for name, value in document.items() if value is not None and name != "request_id"}
    if found.get("priority") == 0:
        del found["priority"]
    sampling = found.get("sampling_params")
    if type(sampling) is dict and sampling.get("extra_args"):
        found["vllm_xargs"] = sampling["extra_args"]  # vLLM's other name for them
    if found.get("features"):
        message = "'features' names entries of a cache that tenants share. Send the media as 'content_parts'."
        raise BodyError(message, "fleet_field", "features")
    return found


def _model(document: dict[str, Any]) -> str:
    model = document.get("model")
    if model is None or model == "":
        raise BodyError("'model' must name a model. GET /v1/models lists them.", "model_missing", "model")
    if type(model) is not str:
        raise BodyError("'model' must be a string.", "invalid_type", "model")
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


def _object(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    if value is None:
        return {}
    if type(value) is dict:
        return value
    raise BodyError(f"{name!r} must be an object.", "invalid_type", name)


def _integer(document: dict[str, Any], name: str) -> int | None:
    value = document[name]
    if value is None or type(value) is int:
        return value
    raise BodyError(f"{name!r} must be an integer.", "invalid_type", name)
