"""What a JSON request body asks for, and the only places where its bytes are changed.

Spliced places of requests (everything else is forwarded byte for byte):

1. ``model``: the value, when the client used another name than the engine does (aliases, canaries, fallbacks).
2. ``stream_options``: ``{"include_usage":true}`` for chat and completion streams whose client did not ask for usage;
   ``usage.py`` takes the extra event out of the answer again.
3. ``cache_salt``: the tenant's own, where the engine's request has that field.
"""

from __future__ import annotations

import enum
from typing import Any

__all__ = ("BodyError", "BodyKind", "Facts", "read_facts", "splice")


class BodyKind(enum.Enum):
    """What the path of a request makes of its body."""

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


class BodyError(Exception):
    """A body that gets 400. ``code`` is a short word, ``param`` the field at fault."""

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class Facts:
    """What the gateway needs to know of one body.

    document: the decoded body; model: as asked for, never empty
    prompt_chars: characters of text in the prompt, instructions and tools together
    num_prompt_tokens_estimate: a quarter of these; token ids count exactly, each image or the like as a constant
    max_tokens: asked-for completion tokens of one choice; None: up to the engine
    n: choices per prompt times prompts
    wants_usage: the client itself asked for usage in its stream
    usage_addable: ``splice(add_usage=True)`` adds ``include_usage``; the answer's reader must take its event out
    user: the body's ``user`` (``metadata.user_id`` of messages), or empty
    """

    __slots__ = (
        "document",
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


def read_facts(body: bytes, kind: BodyKind, *, refuse_fleet_fields: bool) -> Facts:
    """Reads a body once.

    refuse_fleet_fields: the request comes from a client, so fields that only the fleet sends are errors.
    Raises BodyError: not one JSON object in UTF-8, too deep, a duplicate key, no model, a fleet field.
    """
    raise NotImplementedError


def splice(body: bytes, facts: Facts, *, model: str | None, add_usage: bool, cache_salt: str | None) -> bytes:
    """The body that the engine gets.

    model: the engine's name for the model; None leaves the client's
    add_usage: ask for usage where ``facts.usage_addable``; elsewhere this does nothing
    cache_salt: replaces whatever the client sent, where requests of this kind have the field; None leaves it
    """
    raise NotImplementedError
