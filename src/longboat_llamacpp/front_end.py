"""The HTTP server between the gateway and llama.cpp: checks the engine's key, and writes the journal of streams.

Only the paths below reach llama.cpp, and of a request's headers only its content type: with ``X-Conversation-Id`` a
client's disconnect would no longer end its request.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import aiohttp
from aiohttp import web

from longboat_llamacpp.journal import DifferentResponseError, Journal
from longboat_llamacpp.request_errors import error_of_request
from longboat_llamacpp.terms import BadTermsError, NotContinuedError, Terms, read_terms

__all__ = ("FrontEnd",)

API_PATHS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/rerank",
        "/v1/responses",
        "/props",
        "/slots",
        "/tokenize",
        "/detokenize",
    )
)
OPEN_PATHS = frozenset(("/health", "/metrics"))
RESUME_PATH = "/longboat/v1/resume"
MAX_BODY_BYTES = 1 << 30
ABILITIES = {
    "journal": True,
    "carried": False,
    "replay": True,
    "detail": "llama.cpp repeats a response from its beginning, with the same seed",
}


class FrontEnd:
    """The front end of one llama.cpp server at ``url``."""

    def __init__(self, url: str, inner_key: str, key: str) -> None:
        self._url = url
        self._inner = {"authorization": f"Bearer {inner_key}"}
        self._key = hashlib.sha256(key.encode()).digest() if key else None
        self._session: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        """Return the application; requests of clients that went away are cancelled."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._connections)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    async def _connections(self, _: web.Application) -> Any:
        no_limit = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=no_limit, timeout=timeout, auto_decompress=False) as self._session:
            yield

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        is_open = request.path in OPEN_PATHS
        if not is_open and not self._knows_key(request):
            return _refusal(401, "this engine serves only its fleet's gateway")
        if request.path == RESUME_PATH:
            return web.json_response(ABILITIES)
        if request.path not in API_PATHS and not is_open:
            return _refusal(404, f"llama.cpp in a fleet does not serve {request.path}")
        try:  # what comes without a key is not read: it may be of any size
            terms = read_terms(request.headers, b"" if is_open else await request.read())
        except BadTermsError as error:
            return _refusal(400, str(error))
        except NotContinuedError as error:
            return _refusal(409, f"this engine cannot continue: {error}")
        try:
            return await self._relay(request, terms)
        except aiohttp.ClientError as error:
            if request.transport is not None:
                request.transport.abort()  # a response that had begun must not look whole
            raise web.HTTPBadGateway(text=f"llama.cpp is gone: {error}") from error

    def _knows_key(self, request: web.Request) -> bool:
        if self._key is None:
            return True
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(hashlib.sha256(key.encode()).digest(), self._key)
        return same and scheme.lower() == "bearer"

    async def _relay(self, request: web.Request, terms: Terms) -> web.StreamResponse:
        assert self._session is not None
        kind = request.headers.get("content-type", "application/json")
        headers = {**self._inner, "content-type": kind}
        asked = self._session.request(request.method, self._url + request.path, data=terms.body, headers=headers)
        async with asked as answer:
            if answer.status == 500 and "content-encoding" not in answer.headers:
                failed = await answer.read()
                error = error_of_request(failed)
                kind = answer.headers.get("content-type", "application/json")
                return web.Response(status=400 if error else 500, body=error or failed, headers={"content-type": kind})
            is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
            response = web.StreamResponse(status=answer.status)
            for name in ("content-type", "content-length", "content-encoding", "retry-after"):
                if name in answer.headers:
                    response.headers[name] = answer.headers[name]
            journal = Journal(terms.prior, keep_timings=terms.keep_timings) if terms.journal and is_stream else None
            if journal is not None:
                response.headers["x-longboat-journal"] = "1"
            await response.prepare(request)
            await _copy(answer, response, journal)
            await response.write_eof()
            return response


async def _copy(answer: aiohttp.ClientResponse, response: web.StreamResponse, journal: Journal | None) -> None:
    if journal is None:
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        return
    try:
        async for chunk in answer.content.iter_any():
            if told := journal.feed(chunk):
                await response.write(told)
        if told := journal.feed(b"", is_last=True):
            await response.write(told)
    except DifferentResponseError as error:
        await response.write(b"data: " + json.dumps(_error(409, str(error))).encode() + b"\n\n")


def _refusal(status: int, text: str) -> web.Response:
    return web.json_response(_error(status, text), status=status)


def _error(status: int, text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "engine_error", "param": None, "code": status}}
