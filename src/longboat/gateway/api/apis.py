"""The table of paths: what the gateway relays to engines, and how it reads each path's body and response."""

from __future__ import annotations

from typing import Final

from longboat.core.tasks import GENERATE, POOLING_TASKS
from longboat.gateway.api.body_fields import BodyKind
from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import ErrorStyle

__all__ = ("APIS", "KNOWN_PATHS", "OWN_PATHS", "RESPONSES", "TOKENIZER_INFO", "Api", "style_of")


_MODELS = b"/v1/models"
_ANTHROPICS = (b"/v1/messages", _MODELS)
TEXT = frozenset((GENERATE,))
_EVERY_TASK = frozenset((GENERATE, *POOLING_TASKS))


class Api:
    """The reading of a path's body and response. Several paths can share one."""

    __slots__ = ("body", "events", "name", "needs", "remembers_owner", "style", "summary", "tasks", "weighs_completion")

    def __init__(
        self,
        name: str,
        body: BodyKind,
        summary: str,
        events: AnswerKind = AnswerKind.OPENAI_EVENTS,
        *,
        weighs_completion: bool = False,
        remembers_owner: bool = False,
        style: ErrorStyle = ErrorStyle.OPENAI,
        needs: str = "",
        tasks: frozenset[str] = TEXT,
    ) -> None:
        self.name = name
        self.body = body
        # for the OpenAPI document
        self.summary = summary
        # how a stream of its responses reports usage
        self.events = events
        # the response has generated tokens, so the estimate of its cost includes some
        self.weighs_completion = weighs_completion
        self.style = style
        # responses can be requested again, from the replica that gave them
        self.remembers_owner = remembers_owner
        # what to do where the model's engine does not have the path
        self.needs = needs
        # tasks of the models that have the path
        self.tasks = tasks


_POOLING_MODEL = "Use a model of another task (in a fleet file: task: embed, rerank, classify or reward)"
_SCALE_OUT = "Start its engine with engine.args [--enable-scale-out]"

RESPONSES: Final = Api(
    "responses", BodyKind.RESPONSES, "Create a response", AnswerKind.RESPONSES_EVENTS, weighs_completion=True,
    remembers_owner=True, needs="Use /v1/chat/completions",
)  # fmt: skip
TOKENIZER_INFO: Final = Api(
    "tokenizer_info", BodyKind.NONE, "Describe a model's tokenizer",
    needs="Start its engine with engine.args [--enable-tokenizer-info-endpoint]", tasks=_EVERY_TASK,
)  # fmt: skip

_CHAT = Api("chat", BodyKind.CHAT, "Complete a chat", weighs_completion=True, needs="Use a model that generates text")
_BATCH = Api(
    "chat_batch", BodyKind.BATCH, "Complete several chats, one choice each", weighs_completion=True,
    needs="Send one request for each chat to /v1/chat/completions",
)  # fmt: skip
_COMPLETIONS = Api(
    "completions", BodyKind.COMPLETIONS, "Complete a text", weighs_completion=True,
    needs="Use a model that generates text",
)  # fmt: skip
_SCORING = frozenset(("embed", "rerank"))  # engines score texts by the angle between embeddings, too
_EMBEDDINGS = Api(
    "embeddings", BodyKind.EMBEDDINGS, "Embed texts", needs=_POOLING_MODEL, tasks=frozenset(("embed",))
)  # fmt: skip
_RERANK = Api(
    "rerank", BodyKind.RERANK, "Sort documents by their relevance for a query", needs=_POOLING_MODEL, tasks=_SCORING
)
_SCORE = Api("score", BodyKind.SCORE, "Score pairs of texts", needs=_POOLING_MODEL, tasks=_SCORING)
_POOLING = Api(
    "pooling", BodyKind.POOLING, "Return pooled values of texts", needs=_POOLING_MODEL, tasks=frozenset(POOLING_TASKS)
)
_CLASSIFY = Api(
    "classify", BodyKind.POOLING, "Return classes of texts", needs=_POOLING_MODEL,
    tasks=frozenset(("classify", "rerank")),
)  # fmt: skip
_AUDIO = Api(
    "audio", BodyKind.FORM, "Turn speech into text", weighs_completion=True, needs="Use a model that takes audio"
)
_TOKENIZE = Api(
    "tokenize", BodyKind.TOKENIZE, "Turn a text or a chat into token ids", needs="Use another model", tasks=_EVERY_TASK
)
_DETOKENIZE = Api(
    "detokenize", BodyKind.DETOKENIZE, "Turn token ids into text", needs="Use another model", tasks=_EVERY_TASK
)
_MESSAGES = Api(
    "messages", BodyKind.MESSAGES, "Create a message (Anthropic)", AnswerKind.ANTHROPIC_EVENTS, weighs_completion=True,
    style=ErrorStyle.ANTHROPIC, needs="Use /v1/chat/completions",
)  # fmt: skip
_COUNT = Api(
    "count_tokens", BodyKind.COUNT_TOKENS, "Count a message's input tokens (Anthropic)", style=ErrorStyle.ANTHROPIC,
    needs="Use /tokenize",
)  # fmt: skip
_INPUT_TOKENS = Api(
    "input_tokens", BodyKind.RENDER, "Count a response's input tokens",
    needs="Use /tokenize, or engines that this fleet starts: their plugin adds the path",
)  # fmt: skip
_RENDER = Api("render", BodyKind.RENDER, "Turn a request into token ids", needs=_SCALE_OUT)
_GENERATE = Api(
    "generate", BodyKind.GENERATE, "Generate token ids from token ids", weighs_completion=True, needs=_SCALE_OUT
)

_TGI = Api(
    "tgi", BodyKind.TGI, "Complete a text, in TGI's own words", weighs_completion=True,
    needs="Use /v1/completions, or a model that TGI serves",
)  # fmt: skip

APIS: dict[bytes, Api] = {
    b"/v1/chat/completions": _CHAT,
    b"/v1/chat/completions/batch": _BATCH,
    b"/v1/chat/completions/render": _RENDER,
    b"/v1/completions": _COMPLETIONS,
    b"/v1/completions/render": _RENDER,
    b"/v1/embeddings": _EMBEDDINGS,
    b"/v1/responses": RESPONSES,
    b"/v1/responses/input_tokens": _INPUT_TOKENS,
    b"/v1/responses/render": _RENDER,
    b"/v1/messages": _MESSAGES,
    b"/v1/messages/count_tokens": _COUNT,
    b"/v1/messages/render": _RENDER,
    b"/v1/audio/transcriptions": _AUDIO,
    b"/v1/audio/translations": _AUDIO,
    b"/v1/rerank": _RERANK,
    b"/v2/rerank": _RERANK,
    b"/rerank": _RERANK,
    b"/v1/score": _SCORE,
    b"/score": _SCORE,
    b"/pooling": _POOLING,
    b"/classify": _CLASSIFY,
    b"/tokenize": _TOKENIZE,
    b"/detokenize": _DETOKENIZE,
    b"/generate": _TGI,
    b"/generate_stream": _TGI,
    b"/inference/v1/generate": _GENERATE,
}
"""Paths that take a POST whose body names a model."""

OWN_PATHS: dict[str, tuple[tuple[str, ...], str]] = {
    "/v1/responses/{id}": (("GET", "DELETE"), "Retrieve or delete a stored response"),
    "/v1/responses/{id}/cancel": (("POST",), "Cancel a response that runs in the background"),
    "/v1/responses/{id}/input_items": (("GET",), "List the input items of a stored response"),
    "/v1/models": (("GET", "HEAD"), "List the models that the key may use"),
    "/v1/models/{id}": (("GET", "HEAD"), "Describe one model"),
    "/tokenizer_info": (("GET",), TOKENIZER_INFO.summary),
    "/health": (("GET", "HEAD"), "200 when at least one model can be served, else 503"),
    "/ping": (("GET", "HEAD", "POST"), "The same as /health"),
    "/livez": (("GET", "HEAD"), "200 while the gateway runs"),
    "/readyz": (("GET", "HEAD"), "The same as /health, with the reason"),
    "/version": (("GET", "HEAD"), "Longboat's version"),
    "/load": (("GET", "HEAD"), "Requests in progress on this node"),
    "/metrics": (("GET", "HEAD"), "Metrics in Prometheus's text format"),
    "/openapi.json": (("GET", "HEAD"), "This document"),
    "/admin/v1/state": (("GET", "HEAD"), "The gateway's state"),
    "/admin/v1/requests": (("GET", "HEAD"), "The last requests"),
    "/admin/v1/routes": (("GET", "HEAD"), "What replicas have to do, and how much of it is in their caches"),
    "/admin/v1/trace": (("GET", "HEAD"), "Requests that ended since the last look, without their words"),
    "/admin/v1/requests/{id}": (("GET", "HEAD"), "One of the last requests"),
    "/admin/v1/usage": (("GET", "HEAD"), "Tokens by tenant and day"),
    "/admin/v1/prometheus-targets": (("GET", "HEAD"), "Gateways or engines, for Prometheus' HTTP service discovery"),
    "/admin/v1/adapters": (("GET", "HEAD", "POST"), "List LoRA adapters, or add one"),
    "/admin/v1/adapters/{id}": (("DELETE",), "Take an adapter out of use"),
    "/admin/v1/models": (("POST",), "Start a model that the fleet file lacks"),
    "/admin/v1/models/{id}": (("DELETE",), "End a model that was started without the fleet file"),
    "/admin/v1/models/{id}/scale": (("POST",), "Give a model another number of replicas"),
    "/admin/v1/models/{id}/pause": (("POST",), "Take all replicas of a model out of use"),
    "/admin/v1/models/{id}/resume": (("POST",), "End a pause"),
    "/admin/v1/kill-engine": (("POST",), "Kill a replica's engine, in a demo fleet"),
    "/admin/v1/drain": (("POST",), "Fail /readyz, so that balancers send nothing more here"),
    "/admin/v1/undrain": (("POST",), "End a drain"),
}
"""The other paths: methods and summary of each."""

KNOWN_PATHS = (*(path.decode() for path in APIS), *OWN_PATHS)


def style_of(request: Request) -> ErrorStyle:
    """Return the shape that the client expects: by the path, and for models by a header of Anthropic's clients."""
    url = request.url
    if url.startswith(_ANTHROPICS) and (not url.startswith(_MODELS) or _names_version(request)):
        return ErrorStyle.ANTHROPIC
    return ErrorStyle.OPENAI


def _names_version(request: Request) -> bool:
    return any(line.lower().startswith(b"anthropic-version:") for line in request.forwarded)
