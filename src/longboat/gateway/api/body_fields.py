"""The facts about a request's body that are known once it was read."""

from __future__ import annotations

import enum
from typing import Any

from longboat.compiled import mypyc_attr
from longboat.core.policy import ALLOWABLE_FIELDS
from longboat.gateway.http.strict_json import BodyError

__all__ = ("FLEET_FIELDS", "BodyKind", "Facts", "Form", "fleet_field")

FLEET_FIELDS = frozenset(
    (
        "cache_salt",  # which requests share a prefix cache
        "custom_logit_processor",  # pickled code, which an engine would run
        "custom_params",  # arguments of such code
        "data_parallel_rank",  # which part of an engine answers
        "routed_dp_rank",
        "ec_transfer_params",  # where caches are fetched from and sent to: addresses of other engines
        "kv_transfer_params",
        "nvext",
        "priority",  # the order in which an engine takes requests
        "prior",  # tokens of a response that another engine began
        "request_id",  # names of requests and stored responses; x-request-id is the client's
        "rid",
        "vllm_xargs",  # arguments of an engine's extensions, transfers among them
    )
)
"""Top-level fields that only the fleet may send to its engines, by vLLM's and SGLang's request models."""


def fleet_field(name: str) -> BodyError:
    """Return the error for a field that clients may not send."""
    advice = f"Leave it out, or add it to the tenant's allow_fields ({', '.join(ALLOWABLE_FIELDS)})."
    if name not in ALLOWABLE_FIELDS:
        advice = "Leave it out."
    return BodyError(f"Only the fleet may send {name!r} to its engines. {advice}", "fleet_field", name)


class BodyKind(enum.Enum):
    """The kind of body that a path takes."""

    __hash__ = object.__hash__  # in C, because every request looks something up by it

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    POOLING = "pooling"  # also classify
    BATCH = "batch"  # several chats in one request
    RENDER = "render"  # a request that is turned into token ids, or counted, and not run
    GENERATE = "generate"  # token ids in, token ids out
    TGI = "tgi"  # text in, text out, in TGI's own words
    FORM = "form"  # multipart/form-data
    NONE = "none"  # the request has no body


class Form:
    """The further facts about a multipart form."""

    __slots__ = ("boundary", "fields", "file_bytes", "spans")

    def __init__(self, boundary: bytes) -> None:
        self.boundary = boundary
        self.fields: dict[str, str] = {}  # text fields by name
        self.file_bytes: list[int] = []  # size of each file
        self.spans: dict[str, tuple[int, int]] = {}  # where the value of each text field is in the body


@mypyc_attr(acyclic=True)
class Facts:
    """The facts about one body that the gateway needs."""

    __slots__ = (
        "document",
        "form",
        "kind",
        "max_tokens",
        "model",
        "model_at",
        "model_end",
        "n",
        "num_prompt_tokens_estimate",
        "prompt_chars",
        "stream",
        "usage_addable",
        "user",
        "wants_usage",
    )

    # The decoded body; empty where it was not decoded. Drop it after routing: it is several times as large as the body.
    document: dict[str, Any]
    form: Form | None  # further facts about a form; None for a JSON body
    kind: BodyKind
    model: str  # as asked for, never empty
    stream: bool
    prompt_chars: int  # characters of the prompt, instructions and tools together, as ``prompt_size`` counts them
    num_prompt_tokens_estimate: int  # a quarter of these; token ids count exactly
    max_tokens: int | None  # for the completion of one choice; None: the engine decides; 0: no tokens are generated
    n: int  # choices per prompt times prompts
    wants_usage: bool  # the client itself asked for usage in its stream
    # ``splice(add_usage=True)`` adds ``include_usage``, and the reader of the response must take that event out.
    usage_addable: bool
    # Where the model's name stands, between its quotes, in a body that was not decoded and has nothing yet of what
    # ``splice`` adds; 0: unknown.
    model_at: int
    model_end: int
    user: str  # the body's ``user`` (``metadata.user_id`` of messages), or empty

    @property
    def context_tokens(self) -> int:
        """Tokens of the prompt and the asked-for completion. A negative limit counts as 0, so that it saves no cost."""
        return self.num_prompt_tokens_estimate + max(0, self.max_tokens or 0)
