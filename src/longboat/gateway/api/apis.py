"""The paths that engines answer: what each makes of its body and of its answer."""

from __future__ import annotations

from longboat.gateway.api.body import BodyKind
from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.http.responses import ErrorStyle

__all__ = ("APIS", "KNOWN_PATHS", "RESPONSES", "Api", "style_of")


class Api:
    """One path. body: None is a multipart form; events: how a stream of its answers tells its usage.

    weighs_completion: its answer has generated tokens, so the estimate of its cost holds some
    remembers_owner: its answers can be asked for again, of the replica that gave them
    """

    __slots__ = ("body", "events", "name", "remembers_owner", "style", "weighs_completion")

    def __init__(
        self,
        name: str,
        body: BodyKind | None,
        events: AnswerKind = AnswerKind.OPENAI_EVENTS,
        *,
        weighs_completion: bool = False,
        remembers_owner: bool = False,
        style: ErrorStyle = ErrorStyle.OPENAI,
    ) -> None:
        self.name = name
        self.body = body
        self.events = events
        self.weighs_completion = weighs_completion
        self.style = style
        self.remembers_owner = remembers_owner


RESPONSES = Api(
    "responses", BodyKind.RESPONSES, AnswerKind.RESPONSES_EVENTS, weighs_completion=True, remembers_owner=True
)

_CHAT = Api("chat", BodyKind.CHAT, weighs_completion=True)
_COMPLETIONS = Api("completions", BodyKind.COMPLETIONS, weighs_completion=True)
_EMBEDDINGS = Api("embeddings", BodyKind.EMBEDDINGS)
_RERANK = Api("rerank", BodyKind.RERANK)
_SCORE = Api("score", BodyKind.SCORE)
_POOLING = Api("pooling", BodyKind.POOLING)
_AUDIO = Api("audio", None, weighs_completion=True)
_TOKENIZE = Api("tokenize", BodyKind.TOKENIZE)
_DETOKENIZE = Api("detokenize", BodyKind.DETOKENIZE)
_MESSAGES = Api(
    "messages", BodyKind.MESSAGES, AnswerKind.ANTHROPIC_EVENTS, weighs_completion=True, style=ErrorStyle.ANTHROPIC
)
_COUNT = Api("count_tokens", BodyKind.COUNT_TOKENS, style=ErrorStyle.ANTHROPIC)

APIS: dict[bytes, Api] = {
    b"/v1/chat/completions": _CHAT,
    b"/v1/completions": _COMPLETIONS,
    b"/v1/embeddings": _EMBEDDINGS,
    b"/v1/responses": RESPONSES,
    b"/v1/messages": _MESSAGES,
    b"/v1/messages/count_tokens": _COUNT,
    b"/v1/audio/transcriptions": _AUDIO,
    b"/v1/audio/translations": _AUDIO,
    b"/v1/rerank": _RERANK,
    b"/v2/rerank": _RERANK,
    b"/rerank": _RERANK,
    b"/v1/score": _SCORE,
    b"/score": _SCORE,
    b"/pooling": _POOLING,
    b"/classify": _POOLING,
    b"/tokenize": _TOKENIZE,
    b"/detokenize": _DETOKENIZE,
}
"""Paths that take a POST whose body names a model."""

KNOWN_PATHS = (*(path.decode() for path in APIS), "/v1/responses/{id}", "/v1/models", "/livez", "/readyz", "/metrics")


def style_of(path: bytes) -> ErrorStyle:
    """Whose error shape a client of this path expects."""
    return ErrorStyle.ANTHROPIC if path.startswith(b"/v1/messages") else ErrorStyle.OPENAI
