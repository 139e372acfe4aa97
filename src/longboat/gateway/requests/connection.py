"""A client's connection: reads requests within limits, answers them one after another in the order they came."""

from __future__ import annotations

import asyncio
import functools
import re
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import httptools

from longboat.gateway.api.apis import style_of
from longboat.gateway.api.paths import DEPLOYMENT, own_target
from longboat.gateway.calls.head import KnownHead
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.config import SWEEP_S
from longboat.gateway.exchange.exchange import Exchange
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal
from longboat.gateway.http.tls import TlsTransport
from longboat.gateway.http.wire import NOTED, WITHHELD, connection_tokens, without_named
from longboat.gateway.limits.cors import answer_to_origin
from longboat.gateway.requests.admit import Deferred, admit
from longboat.gateway.requests.deferred import account_remotely, admin_bytes, with_owner
from longboat.gateway.requests.pending_reply import PendingReply

__all__ = ("ClientConnection",)

T = TypeVar("T")

_MAX_QUEUED = 32  # pipelined requests that wait; what one read may bring beyond that is refused
_MAX_FRAMING_RATIO = 8  # bytes on the wire per byte of chunked body
_LINGER_S = 1.0
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_ORDINARY_CONNECTION = frozenset((b"", b"close", b"keep-alive"))


class ClientConnection:
    """An asyncio protocol by its methods. Reads on while an answer runs, to notice at once that a client goes."""

    __slots__ = (
        "_deaf",
        "_exchange",
        "_first_block",
        "_first_bytes",
        "_head_bytes",
        "_idle_since_s",
        "_in_head",
        "_parser",
        "_paused_since_s",
        "_queue",
        "_reads_later",
        "_request",
        "_stalled_since_s",
        "_state",
        "_transport",
        "_wire_bytes",
        "closes_after",
        "write_paused",
    )

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._transport: Any = None
        self._parser: Any = None
        self._request: Request | None = None  # being read
        self._queue: deque[Request] = deque()  # read, not answered
        self._exchange: Exchange | PendingReply[Any] | None = None  # being answered
        self._head_bytes = 0
        self._wire_bytes = self._first_bytes = 0
        self._first_block: bytes | None = None  # where the parser was between two requests before it
        self._in_head = False
        self._deaf = False  # nothing more is read
        self._idle_since_s = 0.0  # set by the next sweep
        self._stalled_since_s = 0.0
        self.write_paused = False
        self.closes_after = False
        self._reads_later = False  # reading is paused until the requests that wait were answered

    # what the loop calls

    def connection_made(self, transport: Any) -> None:
        self._transport = TlsTransport(transport) if transport.get_extra_info("sslcontext") else transport
        self._parser = httptools.HttpRequestParser(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._state.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        between = self._request is None and self._exchange is None and not self._queue
        if between and self._take_known(data):
            return
        self._wire_bytes += len(data)
        self._first_bytes = len(data) if self._request is None else 0
        self._first_block = data if between else None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _RefusedError):
                raise  # a defect of ours: the loop reports it and closes the connection
            self._refuse(error.__context__.refusal)
        except httptools.HttpParserError as error:
            self._refuse(error_responses.bad_http(str(error)))
        else:
            self._check_block()

    def _take_known(self, data: bytes) -> bool:
        """Take a request whose head came before, without parsing it again. The parser never hears of it."""
        state = self._state
        known = state.heads.match(data)
        if known is None:
            return False
        head, body_at = known
        size = len(data) - body_at
        if size > state.limits.max_body_bytes or state.held_bytes + size > state.limits.max_held_bytes:
            return False  # the long way refuses it
        state.held_bytes += size
        request = head.request(data[body_at:])
        request.request_id = state.new_request_id()
        if self.write_paused:
            self._queue.append(request)
            self._pause_reading()
        else:
            self._answer(request, head)
        return True

    def eof_received(self) -> bool:
        if self._exchange is not None:
            self._transport.abort()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._state.connections.discard(self)
        self._transport = self._parser = None
        self._deaf = True
        if self._request is not None:
            self._release(self._request)
            self._request = None
        while self._queue:
            self._release(self._queue.popleft())
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.abort()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._stalled_since_s = time.monotonic()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._exchange is not None:
            self._exchange.resume()
        else:
            self._answer_next()

    # what the exchange calls

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def chunk_writer(self) -> Callable[[bytes], object] | None:
        return None if self._transport is None else self._transport.write

    def exchange_done(self, *, keep: bool) -> None:
        self._exchange = None
        if keep and not self.closes_after and not self._queue and not self._reads_later:
            self._idle_since_s = 0.0
            return
        self._answered(keep=keep)
        self._answer_next()

    # what the server calls

    def sweep(self, now_s: float) -> None:
        """Four times a second: every limit in seconds of this connection."""
        limits = self._state.limits
        if self.write_paused and now_s - self._stalled_since_s > limits.client_stall_s:
            self._transport.abort()
        elif self._exchange is not None:
            if self._queue and self._has_left():
                self._transport.abort()
            else:
                self._exchange.sweep(limits.engine_silence_s / SWEEP_S)
        elif self._request is not None:
            self._sweep_reading(self._request, now_s)
        elif not self._queue and not self._deaf:
            if not self._idle_since_s:
                self._idle_since_s = now_s
            elif now_s - self._idle_since_s > limits.keepalive_s:
                self._close()

    def cut(self) -> None:
        """Close now, whatever is owed: as if the client had gone."""
        if self._transport is not None:
            self._transport.abort()

    def _has_left(self) -> bool:
        """Asks the system: with requests that were sent ahead nothing is read, so the loop does not tell."""
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        asked = select.poll()
        asked.register(sock.fileno(), select.POLLRDHUP)
        return bool(asked.poll(0))

    def stop_when_idle(self) -> None:
        """Close now, or after the answers that are owed."""
        if self._exchange is not None or self._queue or self._request is not None:
            self.closes_after = True
        else:
            self._close()

    # what the parser calls

    def on_message_begin(self) -> None:
        if self._deaf or len(self._queue) >= _MAX_QUEUED:
            raise _RefusedError(error_responses.bad_http(f"more than {_MAX_QUEUED} requests were sent ahead"))
        self._request = Request()
        self._head_bytes = 0
        self._wire_bytes, self._first_bytes = self._first_bytes, 0  # all of the block, where it began the block
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        assert self._request is not None
        self._count_head(len(url))
        self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        request = self._request
        assert request is not None
        if not self._in_head:  # a trailer of a chunked body
            return
        lower = name.lower()
        if lower in NOTED:
            noted = request.noted
            noted[lower] = noted[lower] + b"," + value if lower in noted else value
            if lower == b"content-type":
                request.forwarded.append(b"content-type: %b\r\n" % value)
        elif lower not in WITHHELD and not lower.startswith(b"x-longboat-"):
            request.forwarded.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        request = self._request
        assert request is not None
        self._in_head = False
        self._complete_head(request)
        if request.refusal is not None:
            raise _RefusedError(request.refusal)
        if self._waits_for_word(request):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _waits_for_word(self, request: Request) -> bool:
        """Whether the client sends the body only after it was told to go on."""
        if b"expect" not in request.noted or request.http_1_0 or self._queue or self._exchange is not None:
            return False
        return request.noted[b"expect"].lower() == b"100-continue"

    def on_body(self, body: bytes) -> None:
        request = self._request
        assert request is not None
        size = len(body)
        request.held_bytes += size
        self._state.held_bytes += size
        if request.held_bytes > self._state.limits.max_body_bytes:
            raise _RefusedError(error_responses.body_too_large(self._state.limits.max_body_bytes))
        if self._state.held_bytes > self._state.limits.max_held_bytes:
            raise _RefusedError(error_responses.overloaded_memory())
        request.pieces.append(body)

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        self._queue.append(request)
        if self._first_block is not None:
            self._state.heads.learn(self._first_block, request)
            self._first_block = None
        if not request.keep_alive:
            self._deaf = True
        if self._exchange is None:
            self._answer_next()
        if self._queue:
            self._pause_reading()

    def _pause_reading(self) -> None:
        """Read no further until the requests that wait were answered."""
        if not self._transport.is_closing():
            self._reads_later = True
            self._transport.pause_reading()

    # reading

    def _complete_head(self, request: Request) -> None:
        parser, noted = self._parser, request.noted
        request.method = parser.get_method().decode("latin-1")
        request.url, deployment = own_target(request.url)
        if deployment:
            noted[DEPLOYMENT] = deployment
        version = parser.get_http_version()
        request.http_1_0 = version == "1.0"
        request.keep_alive = parser.should_keep_alive() and not request.http_1_0
        request.request_id = self._request_id(noted.get(b"x-request-id"))
        named = connection_tokens(noted.get(b"connection", b"")) - _ORDINARY_CONNECTION
        if named:
            request.forwarded = without_named(request.forwarded, named)
        request.refusal = self._head_refusal(request, version)

    def _head_refusal(self, request: Request, version: str) -> Refusal | None:
        noted, limits = request.noted, self._state.limits
        if version not in ("1.0", "1.1"):
            return error_responses.version_refused()
        host = noted.get(b"host")
        if (host is None and not request.http_1_0) or b"," in (host or b""):
            return error_responses.bad_http("it needs exactly one Host header")
        coding = noted.get(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            return error_responses.coded_transfer()
        if coding is not None and request.http_1_0:
            return error_responses.bad_http("HTTP/1.0 has no Transfer-Encoding")
        length = noted.get(b"content-length")
        if length is not None and int(length) > limits.max_body_bytes:
            return error_responses.body_too_large(limits.max_body_bytes)
        return None

    def _request_id(self, given: bytes | None) -> str:
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode("ascii")
        return self._state.new_request_id()

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > self._state.limits.max_head_bytes:
            raise _RefusedError(error_responses.head_too_large(self._state.limits.max_head_bytes))

    def _check_block(self) -> None:
        """Bounds what the parser swallows without telling: unfinished header lines, chunk extensions."""
        request, limits = self._request, self._state.limits
        if request is None:
            return
        if self._in_head and self._wire_bytes > limits.max_head_bytes:
            self._refuse(error_responses.head_too_large(limits.max_head_bytes))
        elif self._wire_bytes > 2 * limits.max_head_bytes + 262144 + _MAX_FRAMING_RATIO * request.held_bytes:
            self._refuse(error_responses.bad_http("its chunks are mostly framing"))

    def _sweep_reading(self, request: Request, now_s: float) -> None:
        limits = self._state.limits
        spent_s = now_s - request.received_s
        if self._in_head:
            if spent_s > limits.head_timeout_s:
                self._refuse(error_responses.too_slow("request head", limits.head_timeout_s))
        elif spent_s > limits.body_timeout_s + request.held_bytes / limits.min_body_bytes_per_s:
            self._refuse(error_responses.too_slow("request body", limits.body_timeout_s))

    def _ignore_upgrade(self) -> None:
        """A request offered to go on in another protocol: it has its answer in this one. Nothing after it is read."""
        self._deaf = True
        if self._exchange is not None or self._queue:
            self.closes_after = True
        else:
            self._linger()

    def _refuse(self, refusal: Refusal) -> None:
        """Queue the answer to a request that cannot be read to its end; nothing after it is read."""
        if self._deaf:  # what follows a request that said `Connection: close` is nobody's
            return
        request = self._request or Request()
        self._request = None
        self._deaf = True
        self._release(request)
        request.refusal = refusal
        request.keep_alive = False
        request.request_id = request.request_id or self._state.new_request_id()
        self._queue.append(request)
        if self._exchange is None:
            self._answer_next()

    # answering

    def _answer_next(self) -> None:
        while self._queue and self._exchange is None and not self.write_paused and self._transport is not None:
            if not self._answer(self._queue.popleft(), None):
                return
        if not self._queue and not self._deaf and not self._transport.is_closing():
            self._reads_later = False
            self._transport.resume_reading()

    def _answer(self, request: Request, known: KnownHead | None) -> bool:
        """Return False where a defect ended the connection: it must end this one and no other."""
        if not request.keep_alive or self._state.draining or self._state.stopping:
            self.closes_after = True
        try:
            self._decide(request, known)
        except Exception as error:
            self._report(error)
            self._transport.abort()
            return False
        return True

    def _decide(self, request: Request, known: KnownHead | None) -> None:
        """known: the request's head, where it came before"""
        state = self._state
        if request.url.startswith(b"/v1/"):
            state.requests_total += 1
        if request.refusal is None and b"origin" in request.noted:
            preflight = answer_to_origin(state.live, request, close=self.closes_after)
            if preflight is not None:
                self._release(request)
                self.write(preflight)
                self._answered(keep=True)
                return
        try:
            decision = admit(state, request, known, close=self.closes_after)
        except Exception as error:  # a defect: nothing is written yet, so the client can be told
            self._report(error)
            decision = error_responses.internal()
        self._carry_out(request, decision)

    def _carry_out(self, request: Request, decision: Call | Deferred | Refusal | bytes) -> None:
        if isinstance(decision, Call):
            self._begin(decision)
        elif isinstance(decision, Deferred):
            self._ask_others(request, decision)
        else:
            self._give(request, decision)

    def _begin(self, call: Call) -> None:
        """Open the call's account, and send it to an engine."""
        state = self._state
        if state.remote_counters is None:
            refusal = state.accounting.open(call)
            if refusal is None or not state.counters.lacks_lease:
                self._opened(call, refusal)
                return
        opened = functools.partial(self._opened_remotely, call)
        self._wait_for(account_remotely(state, call), opened, call.request, call)

    def _opened(self, call: Call, refusal: Refusal | None) -> None:
        self._exchange = None
        if refusal is not None:
            self._give(call.request, refusal, tenant=call.tenant.name, model=call.pool)
            return
        exchange = Exchange(self._state, self, call)
        self._exchange = exchange
        exchange.start()

    def _opened_remotely(self, call: Call, refusal: Refusal | None) -> None:
        self._opened(call, refusal)
        self._answer_next()

    def _ask_others(self, request: Request, deferred: Deferred) -> None:
        state = self._state
        if deferred.call is not None:
            owned = with_owner(state, deferred.call, deferred.response_id)
            self._wait_for(owned, functools.partial(self._asked, request), request)
        else:
            peer = self._transport.get_extra_info("peername")
            answer = admin_bytes(state, request, peer=peer[0] if peer else "", close=self.closes_after)
            self._wait_for(answer, functools.partial(self._asked, request), request)

    def _wait_for(
        self, work: Coroutine[Any, Any, T], done: Callable[[T], None], request: Request, call: Call | None = None
    ) -> None:
        """Wait for this work before the answer. call: the work opens the account of this one."""
        self._exchange = PendingReply(
            work,
            functools.partial(self._carry_on, done),
            failed=functools.partial(self._reply_failed, request),
            left=functools.partial(self._left, request, call),
        )

    def _carry_on(self, done: Callable[[T], None], result: T) -> None:
        try:
            done(result)
        except Exception as error:  # nobody above would end the connection
            self._report(error)
            if self._transport is not None:
                self._transport.abort()

    def _left(self, request: Request, call: Call | None) -> None:
        self._release(request)
        if call is not None:
            self._state.accounting.close(call, time.monotonic(), status=499, outcome="client_left")

    def _reply_failed(self, request: Request) -> None:
        self._exchange = None
        self._give(request, error_responses.internal())
        self._answer_next()

    def _report(self, error: Exception) -> None:
        report = {"message": "the gateway failed on a request", "exception": error, "protocol": self}
        asyncio.get_running_loop().call_exception_handler(report)

    def _asked(self, request: Request, decision: Call | Refusal | bytes) -> None:
        self._exchange = None
        self._carry_out(request, decision)
        self._answer_next()

    def _give(self, request: Request, answer: Refusal | bytes, *, tenant: str = "", model: str | None = None) -> None:
        """An answer of our own."""
        self._release(request)
        if isinstance(answer, Refusal):
            self.closes_after = self.closes_after or answer.close
            bare = request.method == "HEAD"
            self.write(
                answer.encode(
                    request_id=request.request_id,
                    close=self.closes_after,
                    without_body=bare,
                    style=style_of(request.url),
                    extra=request.extra_lines,
                )
            )
            self._state.accounting.refused(request, answer, tenant=tenant, model=model)
        else:
            self.write(answer)
        self._answered(keep=True)

    def _answered(self, *, keep: bool) -> None:
        self._idle_since_s = time.monotonic()
        if self.closes_after or not keep:
            while self._queue:
                self._release(self._queue.popleft())
            self._linger()

    def _release(self, request: Request) -> None:
        self._state.held_bytes -= request.held_bytes
        request.held_bytes = 0
        request.pieces.clear()

    def _linger(self) -> None:
        """Close so that the answer arrives: what the client still sends is read and dropped for a moment."""
        transport = self._transport
        self._deaf = True
        if transport is None or transport.is_closing():
            return
        transport.resume_reading()
        transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_S, transport.close)

    def _close(self) -> None:
        self._deaf = True
        if self._transport is not None:
            self._transport.close()


class _RefusedError(Exception):
    """Carries a refusal out of a parser's callback."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal
