"""The fake engine's API: routes paths to handlers, checks keys, and writes errors."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

import orjson

from longboat.core.states import ResumeLevel
from longboat_fake.api.audio import answer_audio
from longboat_fake.api.chat import complete
from longboat_fake.api.generation import check_room
from longboat_fake.api.messages import answer_messages, anthropic_error, count_tokens
from longboat_fake.api.pooling import POOLING_PATHS, pooling_answer, pooling_prompts
from longboat_fake.api.requests import RefusedError, chat_prompt, checked_model, decoded
from longboat_fake.api.responses import Responses
from longboat_fake.engine.faults import FaultError, fault_from, fault_in_header
from longboat_fake.engine.generator import FakeEngine, Job
from longboat_fake.engine.tokens import decode, encode
from longboat_fake.http.carry import PRIVATE_HEADERS, read_terms
from longboat_fake.http.server import Exchange
from longboat_vllm.prefixes.feed import PATH as PREFIXES_PATH
from longboat_vllm.prefixes.feed import read_query

__all__ = ("Api",)

_GUARDED = ("/v1", "/v2", "/longboat")
_OF_THE_FLEET = "/longboat/"
_ONE_RESPONSE = re.compile(r"/v1/responses/(?!input_tokens$)[^/]+(/cancel)?")
_KINDS = {
    401: "AuthenticationError",
    403: "PermissionError",
    404: "NotFoundError",
    409: "ConflictError",
    500: "InternalServerError",
    503: "ServiceUnavailable",
}

Route = Callable[[Exchange], Awaitable[None] | None]


class Api:
    """The HTTP API of one engine."""

    def __init__(self, engine: FakeEngine, key: str = "", kv_sources: Mapping[str, object] | None = None) -> None:
        self._engine = engine
        self._key = key  # required by paths below ``_GUARDED``; empty: no key is required
        self._kv_sources = dict(kv_sources or {})
        self._responses = Responses(engine)
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): lambda exchange: exchange.answer(200, b""),
            ("GET", "/ping"): lambda exchange: exchange.answer(200, b""),
            ("GET", "/version"): lambda exchange: exchange.answer(200, b'{"version":"longboat-fake"}'),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/longboat/v1/resume"): self._resume,
            ("GET", "/longboat/v1/steps"): self._steps,
            ("GET", PREFIXES_PATH): self._tell_prefixes,
            ("GET", "/v1/models"): self._models,
            ("GET", "/kv_event_sources"): lambda exchange: exchange.answer(200, orjson.dumps(self._kv_sources)),
            ("GET", "/v1/responses/*"): self._responses.retrieve,
            ("POST", "/v1/responses/*/cancel"): self._responses.cancel,
            ("POST", "/v1/responses"): self._responses.create,
            ("POST", "/v1/responses/input_tokens"): self._responses.count_input,
            ("POST", "/v1/messages"): lambda exchange: answer_messages(engine, exchange),
            ("POST", "/v1/messages/count_tokens"): lambda exchange: count_tokens(engine, exchange),
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/fault"): self._fault,
        }
        if engine.adapters.num_held:
            self._routes["POST", "/longboat/v1/adapters"] = self._adapters
        chats, sounds = ("chat/completions", "completions"), ("audio/transcriptions", "audio/translations")
        self._routes |= {("POST", f"/v1/{path}"): lambda exchange: complete(engine, exchange) for path in chats}
        self._routes |= {("POST", f"/v1/{path}"): lambda exchange: answer_audio(engine, exchange) for path in sounds}
        self._routes |= {("POST", path): self._pool for path in POOLING_PATHS}

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request. Raises only cancellation and, for a broken stream, ``StreamBroken``."""
        try:
            route = self._route(self._with_terms(exchange))
            if exchange.path.startswith("/v1") and exchange.method == "POST" and self._engine.faults.takes_error():
                raise RefusedError(500, "EngineCore encountered an issue.")
            answering = route(exchange)
            if answering is not None:
                await answering
        except RefusedError as refusal:
            exchange.answer(refusal.status, _error(exchange.path, refusal.status, str(refusal), refusal.param))
        except FaultError as bad:
            exchange.answer(400, _error(exchange.path, 400, str(bad), None))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if exchange.is_streaming:
                raise
            exchange.answer(400, _error(exchange.path, 400, f"a field has the wrong type or value: {error!r}", None))

    def _with_terms(self, exchange: Exchange) -> Exchange:
        """Return the exchange with the gateway's own headers and the prefix of its body read.

        Raises RefusedError.
        """
        asked = [name for name in PRIVATE_HEADERS if name in exchange.headers]
        if asked and not (self._key and self._shows_key(exchange)):
            raise RefusedError(403, f"only the fleet's own gateway may send the header {asked[0]}")
        if asked:
            exchange.terms, exchange.body = read_terms(exchange.headers, exchange.body, self._engine.settings.resume)
        adapter = exchange.terms.adapter
        if adapter and not self._engine.adapters.use(adapter):
            raise RefusedError(503, f"this engine does not have the adapter {adapter}")
        return exchange

    def _shows_key(self, exchange: Exchange) -> bool:
        shown = exchange.headers.get("authorization", "")
        return hmac.compare_digest(shown.encode(), f"Bearer {self._key}".encode())

    def _route(self, exchange: Exchange) -> Route:
        if exchange.path.startswith(_GUARDED) and self._key and not self._shows_key(exchange):
            raise RefusedError(401, "Unauthorized")
        if exchange.path.startswith(_OF_THE_FLEET) and not self._key:
            raise RefusedError(403, "this path requires the engine's key, and this engine has none")
        path = exchange.path
        if found := _ONE_RESPONSE.fullmatch(path):
            path = "/v1/responses/*" + (found.group(1) or "")
        route = self._routes.get((exchange.method, path))
        if route is None:
            known = {path for _method, path in self._routes}
            raise RefusedError(*((405, "Method Not Allowed") if path in known else (404, "Not Found")))
        return route

    def _metrics(self, exchange: Exchange) -> None:
        exchange.answer(200, self._engine.metrics_text().encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _models(self, exchange: Exchange) -> None:
        settings = self._engine.settings
        card = {"id": settings.model, "object": "model", "created": 1, "owned_by": "longboat", "root": settings.model}
        answer = {"object": "list", "data": [{**card, "parent": None, "max_model_len": settings.context_tokens}]}
        exchange.answer(200, orjson.dumps(answer))

    def _resume(self, exchange: Exchange) -> None:
        level = self._engine.settings.resume
        answer = {
            "carried": level is ResumeLevel.CARRIED,
            "replay": level is not ResumeLevel.NONE,
            "detail": f"started with --resume {level}",
            "engine": "longboat-fake",
            "runner": "v1",
        }
        exchange.answer(200, orjson.dumps(answer))

    def _adapters(self, exchange: Exchange) -> None:
        exchange.answer(200, orjson.dumps(self._engine.adapters.take(decoded(exchange.body)["adapters"])))

    def _steps(self, exchange: Exchange) -> None:
        engine = self._engine
        answer = {"steps": engine.num_steps, "running": engine.num_running, "waiting": engine.num_waiting}
        exchange.answer(200, orjson.dumps(answer))

    async def _tell_prefixes(self, exchange: Exchange) -> None:
        book, engine = self._engine.prefixes.book, self._engine
        epoch, after, names = read_query(exchange.target.partition("?")[2].encode())
        exchange.start_stream(content_type="application/octet-stream")
        async with aclosing(book.feed.frames(epoch, after, names)) as frames:
            async for data in frames:
                await engine.gates["fault"].wait()
                await exchange.send(data)

    def _fault(self, exchange: Exchange) -> None:
        fault = fault_from(decoded(exchange.body))
        exchange.answer(200, b'{"armed":true}')
        asyncio.get_running_loop().call_later(
            0.02, self._engine.faults.arm, fault
        )  # the response is sent before a fault that kills this process

    def _tokenize(self, exchange: Exchange) -> None:
        body = checked_model(self._engine.settings.model, decoded(exchange.body))
        prompt = body.get("prompt")
        ids = chat_prompt(body) if prompt is None else encode(str(prompt))
        strings = [decode([token]) for token in ids] if body.get("return_token_strs") else None
        room = self._engine.settings.context_tokens
        answer = {"count": len(ids), "max_model_len": room, "tokens": ids, "token_strs": strings}
        exchange.answer(200, orjson.dumps(answer))

    def _detokenize(self, exchange: Exchange) -> None:
        ids = checked_model(self._engine.settings.model, decoded(exchange.body)).get("tokens")
        if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
            raise RefusedError(400, "tokens must be a list of token ids", "tokens")
        exchange.answer(200, orjson.dumps({"prompt": decode(ids)}))

    async def _pool(self, exchange: Exchange) -> None:
        body = checked_model(self._engine.settings.model, decoded(exchange.body))
        fault = fault_from(body["longboat_fault"]) if "longboat_fault" in body else fault_in_header(exchange.headers)
        prompts = pooling_prompts(exchange.path, body)
        jobs = [Job(prompt=prompt, num_tokens=0, fault=fault) for prompt in prompts]
        check_room(self._engine, *jobs)
        answer = pooling_answer(exchange.path, body, prompts, self._engine.settings.model, os.urandom(8).hex())
        await asyncio.gather(*(self._engine.read(job) for job in jobs))
        exchange.answer(200, orjson.dumps(answer))


def _error(path: str, status: int, message: str, param: str | None) -> bytes:
    kind = _KINDS.get(status, "BadRequestError")
    if path.startswith("/v1/messages"):
        return anthropic_error(kind, message)
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})
