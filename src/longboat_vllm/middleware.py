"""ASGI middleware in vLLM's API server: honours the gateway's terms of a request, and reports how it can resume.

``--middleware longboat_vllm.middleware.ResumeMiddleware`` adds it to vLLM. An engine with a key answers only requests
that carry it, but for its health and metrics: vLLM itself asks for the key on some of its paths only, and generates on
``/invocations`` without it. Requests without the gateway's headers pass unchanged.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, ClassVar

from longboat_vllm import adapters, input_tokens
from longboat_vllm.prefixes.current import PREFIXES, Prefixes, names_in
from longboat_vllm.prefixes.feed import PATH as PREFIXES_PATH
from longboat_vllm.quiet_log import hush
from longboat_vllm.resume.carry import (
    CURRENT,
    BadCarryError,
    CarriedRequest,
    Wish,
    looks_at_tokens,
    read_carry,
    read_wish,
    repeats_logprobs,
    unsupported,
)
from longboat_vllm.resume.install import STATE, ResumeState
from longboat_vllm.resume.journal_lines import JournalLines, ids_lines, steps_line
from longboat_vllm.steps import STEPS, Steps

__all__ = ("ResumeMiddleware", "answer_json")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

KEY_VARIABLES = ("VLLM_API_KEY", "LONGBOAT_ENGINE_API_KEY")
STEPS_PERIOD_S = 1.0
_RESUME_PATH = "/longboat/v1/resume"
_STEPS_PATH = "/longboat/v1/steps"
_NO_KEY = {"message": "this engine serves only its fleet's gateway", "type": "Unauthorized", "code": 401}
_TOLD_TO_PARSER = 32
_TOLD_WITHOUT_PARSER = 2**20


class ResumeMiddleware:
    """The middleware between vLLM's server and its routes; one per API server."""

    open_paths: ClassVar[tuple[str, ...]] = ("/health", "/ping", "/metrics", "/version")  # that need no key
    takes_media: ClassVar[bool] = True  # whether streams about images and sounds are continued exactly
    tells_apart: ClassVar[bool] = True  # whether carried tokens come before, and never with, those that follow

    def __init__(
        self,
        app: App,
        *,
        state: ResumeState = STATE,
        steps: Steps = STEPS,
        environ: Mapping[str, str] = os.environ,
        steps_period_s: float = STEPS_PERIOD_S,
        prefixes: Prefixes = PREFIXES,
    ) -> None:
        self._app = app
        self._state = state
        self._steps = steps
        self._steps_period_s = steps_period_s
        self._prefixes = prefixes
        key = next((environ[name] for name in KEY_VARIABLES if environ.get(name)), "")
        self._key_digest = hashlib.sha256(key.encode()).digest() if key else None
        self._silent: set[_JournaledSend | _WholeSend] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._desk: Any = adapters.AdapterDesk()  # another engine has one of its own, with the same methods
        hush()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and not self._may_enter(scope):
            return await _shut_out(scope, send)
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["path"] in (_RESUME_PATH, _STEPS_PATH):
            return await self._tell(scope, send)
        if scope["path"] == PREFIXES_PATH:
            return await self._tell_prefixes(scope, receive, send)
        if scope["path"] == adapters.PATH:
            return await self._take_adapters(scope, receive, send)
        if scope["path"] == input_tokens.PATH and scope.get("method") == "POST":
            return await self._count_input(scope, receive, send)
        try:
            wish, names = read_wish(scope["headers"]), names_in(scope["headers"])
        except ValueError as error:
            return await answer_json(send, 400, _error(str(error), 400))
        if wish is None and names is None:
            return await self._app(scope, receive, send)
        if not self._knows_key(scope):
            return await answer_json(send, 403, _error("only this fleet's gateway may carry or request token ids", 403))
        with self._prefixes.naming(names):
            if wish is None:
                return await self._app(scope, receive, send)
            return await (self._with_adapter if wish.adapter else self._honour)(wish, scope, receive, send)

    async def _take_adapters(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if not self._knows_key(scope):
            return await answer_json(send, 403, _error("this path requires the engine's key", 403))
        return await answer_json(
            send, *await self._desk.take(scope.get("app"), _json_or_none(await _whole_body(receive)))
        )

    async def _with_adapter(self, wish: Wish, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if not self._desk.has(wish.adapter):
            return await answer_json(send, 503, _error(f"this engine does not have the adapter {wish.adapter}", 503))
        token = self._desk.choose(wish.adapter)
        try:
            await self._honour(wish, scope, receive, send)
        finally:
            self._desk.forget(token)

    async def _honour(self, wish: Wish, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        has_journal = self._state.journal
        request = CarriedRequest(journal=wish.journal and has_journal, whole=wish.whole and has_journal, seed=wish.seed)
        if wish.carry_bytes is not None:
            body = await _whole_body(receive)
            asked = _json_or_none(body[wish.carry_bytes :])
            problems = (_engine_problem(scope), unsupported(asked, takes_media=self.takes_media))
            refusal = _take_over(request, body[: wish.carry_bytes], asked, self._state, problems)
            if refusal is not None:
                return await answer_json(send, *refusal)
            if request.told_at_once > 1 and _parses_reasoning(scope):
                request.told_at_once = _TOLD_TO_PARSER
            _set_length(scope, len(body) - wish.carry_bytes)
            receive = _replaying(body[wish.carry_bytes :], receive)
        token = CURRENT.set(request)
        try:
            if request.journal:
                is_apart = self.tells_apart and request.mode == "carried"
                await self._journaled(_JournaledSend(send, JournalLines(request), is_apart=is_apart), scope, receive)
            elif request.whole:
                await self._journaled(_WholeSend(send, request), scope, receive)
            else:
                await self._app(scope, receive, send)
        finally:
            CURRENT.reset(token)

    async def _journaled(
        self, journaled: _JournaledSend | _WholeSend, scope: MutableMapping[str, Any], receive: Receive
    ) -> None:
        self._silent.add(journaled)
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.get_running_loop().create_task(self._tell_steps())
        try:
            await self._app(scope, receive, journaled)
        finally:
            self._silent.discard(journaled)

    async def _tell_steps(self) -> None:
        """While streams are open, send the engine's steps to those that were silent for a period.

        A client that does not read holds up its own lines only.
        """
        telling: dict[_JournaledSend | _WholeSend, asyncio.Task[None]] = {}
        while self._silent:
            await asyncio.sleep(self._steps_period_s)
            line = steps_line(self._steps.num_steps)
            telling = {sender: task for sender, task in telling.items() if not task.done()}
            for sender in self._silent - telling.keys():
                telling[sender] = asyncio.create_task(_told(sender, line))

    async def _tell(self, scope: MutableMapping[str, Any], send: Send) -> None:
        if not self._knows_key(scope):
            return await answer_json(send, 403, _error("this path requires the engine's key", 403))
        if scope["path"] == _RESUME_PATH:
            return await answer_json(send, 200, _abilities(self._state, scope))
        return await answer_json(send, 200, self._steps.told())

    async def _tell_prefixes(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        book = self._prefixes.book
        if not self._knows_key(scope):
            return await answer_json(send, 403, _error("this path requires the engine's key", 403))
        if book is None:
            return await answer_json(send, 404, _error("this engine tells nothing of prefixes", 404))
        return await self._prefixes.tell(book, scope, receive, send)

    async def _count_input(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        renderer = input_tokens.renderer_of(scope.get("app"))
        if renderer is None:
            return await self._app(scope, receive, send)
        return await answer_json(send, *await input_tokens.count(renderer, await _whole_body(receive)))

    def _may_enter(self, scope: MutableMapping[str, Any]) -> bool:
        """Return whether the request may reach the server: it carries the key, or needs none."""
        is_open = scope["type"] == "http" and scope["path"].rstrip("/") in self.open_paths
        return self._key_digest is None or is_open or self._knows_key(scope)

    def _knows_key(self, scope: MutableMapping[str, Any]) -> bool:
        """Return whether the engine has a key and the request carries it."""
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        digest = hashlib.sha256(key).digest()
        known = self._key_digest is not None and hmac.compare_digest(digest, self._key_digest)
        return known and scheme.lower() == b"bearer"


class _JournaledSend:
    """An ASGI ``send`` that weaves token ids into a stream of events, and passes any other response unchanged."""

    def __init__(self, send: Send, lines: JournalLines, *, is_apart: bool = False) -> None:
        """is_apart: carried tokens come before, and never with, those that follow"""
        self._send = send
        self._lines = lines
        self._value = b"apart" if is_apart else b"1"
        self._streams = False
        self._spoke = True

    async def __call__(self, message: Message) -> None:
        self._spoke = True
        if message["type"] == "http.response.start":
            self._streams = _is_event_stream(message)
            if self._streams:
                message = {**message, "headers": [*message.get("headers", ()), (b"x-longboat-journal", self._value)]}
        elif self._streams and message["type"] == "http.response.body":
            is_last = not message.get("more_body", False)
            body = self._lines.feed(message.get("body", b""), is_last=is_last)
            if is_last:
                self._streams = False
            elif not body:
                return
            message = {**message, "body": body}
        await self._send(message)

    async def tell(self, line: bytes) -> None:
        """Send a comment if nothing was sent since the last call."""
        spoke, self._spoke = self._spoke, False
        if self._streams and not spoke and self._lines.between_events:
            await self._send({"type": "http.response.body", "body": line, "more_body": True})


class _WholeSend:
    """An ASGI ``send`` for a non-streaming response.

    A response that takes long begins early, as a stream of comments with its tokens; the response itself is then the
    only event. A fast response passes unchanged.
    """

    def __init__(self, send: Send, request: CarriedRequest) -> None:
        self._send = send
        self._request = request
        self._is_early = False
        self._is_told = False  # the response, or its beginning, was sent
        self._status = 200
        self._pieces: list[bytes] = []
        self._lock = asyncio.Lock()

    async def __call__(self, message: Message) -> None:
        async with self._lock:
            if not self._is_early:
                self._is_told = True
                await self._send(message)
            elif message["type"] == "http.response.start":
                self._status = message["status"]
            elif message["type"] == "http.response.body":
                self._pieces.append(message.get("body", b""))
                if not message.get("more_body", False):
                    self._is_told = True
                    body = b"".join(self._pieces).replace(b"\n", b" ")  # JSON has line ends only between its tokens
                    event = b"event: %d\ndata: %b\n\n" % (self._status, body)
                    await self._send({"type": "http.response.body", "body": event, "more_body": False})

    async def tell(self, line: bytes) -> None:
        """Send the new tokens, or else the engine's steps."""
        async with self._lock:
            found = {} if self._is_told or self._pieces else self._request.new_ids()
            if self._is_told or self._pieces or not (found or self._is_early):
                return
            if not self._is_early:
                self._is_early = True
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-longboat-journal", b"1")]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": ids_lines(found) or line, "more_body": True})


async def _told(sender: _JournaledSend | _WholeSend, line: bytes) -> None:
    with suppress(Exception):  # the client has left: its own request finds that out
        await sender.tell(line)


def _engine_config(scope: MutableMapping[str, Any]) -> Any:
    engine = getattr(getattr(scope.get("app"), "state", None), "engine_client", None)
    return getattr(engine, "vllm_config", None)


def _engine_problem(scope: MutableMapping[str, Any]) -> str:
    """Return the engine's setting that keeps it from taking tokens over; empty where there is none."""
    is_speculative = getattr(_engine_config(scope), "speculative_config", None) is not None
    return "speculative decoding draws differently at each position" if is_speculative else ""


def _abilities(state: ResumeState, scope: MutableMapping[str, Any]) -> dict[str, Any]:
    is_v2 = bool(getattr(_engine_config(scope), "use_v2_model_runner", False))
    told = {**state.told(), "runner": "v2" if is_v2 else "v1"}
    if problem := _engine_problem(scope):
        told |= {"carried": False, "detail": f"carried is off: {problem}"}
    return told


def _take_over(
    request: CarriedRequest, carried: bytes, asked: Any, state: ResumeState, problems: tuple[str, str]
) -> tuple[int, dict[str, Any]] | None:
    """Put what the body carries into ``request``; else return status and error of the refusal.

    asked: the client's body; problems: why its tokens cannot be taken over, and why it cannot be continued at all
    """
    try:
        request.mode, request.prior = read_carry(carried)
    except BadCarryError as error:
        return 400, _error(str(error), 400)
    reason = (problems[0] if request.mode == "carried" else "") or problems[1]
    if not reason and request.mode == "carried" and repeats_logprobs(asked):
        request.mode = "replay"
    reason = reason or state.refusal(request.mode)
    if reason:
        return 409, _error(f"this engine cannot continue: {reason}", 409)
    request.told_at_once = 1 if looks_at_tokens(asked) else _TOLD_WITHOUT_PARSER
    return None


def _json_or_none(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _parses_reasoning(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the server splits reasoning from content; True where that is unknown."""
    args = getattr(getattr(scope.get("app"), "state", None), "args", None)
    return args is None or bool(getattr(args, "reasoning_parser", None))


async def _whole_body(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return b"".join(pieces)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives ``body`` first."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _set_length(scope: MutableMapping[str, Any], num_bytes: int) -> None:
    kept = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    scope["headers"] = [*kept, (b"content-length", str(num_bytes).encode())]


def _is_event_stream(start: Message) -> bool:
    headers = start.get("headers", ())
    kind: bytes = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    return bool(start["status"] == 200) and kind.startswith(b"text/event-stream")


def _error(text: str, code: int) -> dict[str, Any]:
    return {"error": {"message": text, "type": "resume_error", "param": None, "code": code}}


async def _shut_out(scope: MutableMapping[str, Any], send: Send) -> None:
    """Refuse a request without the key."""
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008})
    return await answer_json(send, 401, {"error": _NO_KEY})


async def answer_json(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
