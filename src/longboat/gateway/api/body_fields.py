"""What is known of a request's body once it was read."""

from __future__ import annotations

import enum
from typing import Any

__all__ = ("BodyKind", "Facts")


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


class Facts:
    """What the gateway needs to know of one body.

    document: the decoded body; let it go after routing, it weighs several times the body
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
