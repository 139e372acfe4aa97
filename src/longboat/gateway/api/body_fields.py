"""What is known of a request's body once it was read."""

from __future__ import annotations

import enum
from typing import Any

from longboat.core.policy import ALLOWABLE_FIELDS
from longboat.gateway.http.strict_json import BodyError

__all__ = ("FLEET_FIELDS", "BodyKind", "Facts", "Form", "fleet_field")

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


def fleet_field(name: str) -> BodyError:
    """Return the error for a field that clients may not send."""
    advice = f"Leave it out, or add it to the tenant's allow_fields ({', '.join(ALLOWABLE_FIELDS)})."
    if name not in ALLOWABLE_FIELDS:
        advice = "Leave it out."
    return BodyError(f"Only the fleet may send {name!r} to its engines. {advice}", "fleet_field", name)


class BodyKind(enum.Enum):
    """What the path of a request makes of its body."""

    __hash__ = object.__hash__  # in C: every request looks something up by it

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
    FORM = "form"  # multipart/form-data
    NONE = "none"  # there is none


class Form:
    """What else is known of a multipart form.

    fields: text fields by name; spans: where the value of each of them stands in the body
    file_bytes: size of all files together
    """

    __slots__ = ("boundary", "fields", "file_bytes", "spans")

    def __init__(self, boundary: bytes) -> None:
        self.boundary = boundary
        self.fields: dict[str, str] = {}
        self.file_bytes = 0
        self.spans: dict[str, tuple[int, int]] = {}


class Facts:
    """What the gateway needs to know of one body.

    document: the decoded body, empty where nobody had to decode it; let it go after routing, it weighs several times
        the body
    form: what else is known of a form; None of a JSON body
    model: as asked for, never empty
    prompt_chars: characters of the prompt, instructions and tools together, as prompt_size counts them
    num_prompt_tokens_estimate: a quarter of these; token ids count exactly
    max_tokens: asked-for completion tokens of one choice; None: up to the engine; 0 where nothing is generated
    n: choices per prompt times prompts
    wants_usage: the client itself asked for usage in its stream
    usage_addable: ``splice(add_usage=True)`` adds ``include_usage``; the answer's reader must take its event out
    user: the body's ``user`` (``metadata.user_id`` of messages), or empty
    """

    __slots__ = (
        "document",
        "form",
        "kind",
        "max_tokens",
        "model",
        "n",
        "num_prompt_tokens_estimate",
        "prompt_chars",
        "stream",
        "usage_addable",
        "user",
        "wants_usage",
    )

    document: dict[str, Any]
    form: Form | None
    kind: BodyKind
    model: str
    stream: bool
    prompt_chars: int
    num_prompt_tokens_estimate: int
    max_tokens: int | None
    n: int
    wants_usage: bool
    usage_addable: bool
    user: str

    @property
    def context_tokens(self) -> int:
        """Prompt and asked-for completion. A negative limit counts as 0: it must not make the request cheap."""
        return self.num_prompt_tokens_estimate + max(0, self.max_tokens or 0)
