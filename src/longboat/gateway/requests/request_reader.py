"""Reads the requests of one connection within limits, and refuses those that break them."""

from __future__ import annotations

import re
from typing import Any, Final

import httptools

from longboat.gateway.api.apis import style_of
from longboat.gateway.api.paths import DEPLOYMENT, own_target
from longboat.gateway.config import GatewayLimits
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import ErrorStyle, Refusal
from longboat.gateway.http.wire import NOTED, WITHHELD, connection_tokens, without_named
from longboat.gateway.requests.client_link import ClientLink

__all__ = ("RequestReader",)

_MAX_QUEUED = 32  # pipelined requests that wait; what one read may bring beyond that is refused
_MAX_FRAMING_RATIO = 8  # bytes on the wire per byte of chunked body
_MAX_LOOSE: Final = 512  # pieces of a body, each of which takes some 40 bytes more than it has
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_ORDINARY_CONNECTION = frozenset((b"", b"close", b"keep-alive"))


class RequestReader:
    """The parser's listener: gives the connection each request that is complete, or refused."""

    __slots__ = (
        "_first_block", "_first_bytes", "_head_bytes", "_in_head", "_link", "_num_loose", "_parser", "_state",
        "_wire_bytes", "request",
    )  # fmt: skip

    def __init__(self, link: ClientLink) -> None:
        self._link = link
        self._state = link.state
        self._parser: Any = httptools.HttpRequestParser(self)
        self.request: Request | None = None  # being read
        self._head_bytes = 0  # of the present request
        self._wire_bytes = 0  # of the present request, as they came
        self._first_bytes = 0  # of the block that began the present request
        self._first_block: bytes | None = None  # the block, where the parser was between two requests before it
        self._num_loose = 0  # last pieces of the present request's body that are not joined
        self._in_head = False

    def feed(self, data: bytes) -> None:
        """Parse what the client sent."""
        self._wire_bytes += len(data)
        self._first_bytes = len(data) if self.request is None else 0
        self._first_block = data if self.request is None and not self._link.is_busy else None
        head_end = -1  # of a request that offers another protocol
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                head_end = offer.args[0]
            if head_end >= 0 and self.request is not None:
                self._read_plain_body(self.request, data[head_end:])
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _RefusedError):
                raise  # a defect of the gateway: the loop reports it and closes the connection
            self._refuse(error.__context__.refusal)
        except httptools.HttpParserError as error:
            self._refuse(error_responses.bad_http(str(error)))
        else:
            self._check_block()

    def end(self) -> None:
        """Forget the request that is being read, and the parser, which holds this reader."""
        self._parser = None
        request, self.request = self.request, None
        if request is not None:
            self._link.release(request)

    def sweep(self, request: Request, now_s: float) -> None:
        """Refuse a request that comes too slowly."""
        if self._link.owes_word:
            return
        limits = self._state.limits
        spent_s = now_s - max(request.received_s, self._link.word_s)
        if self._in_head:
            if spent_s > limits.head_timeout_s:
                self._refuse(error_responses.too_slow("request head", limits.head_timeout_s))
        elif spent_s > limits.body_timeout_s + request.held_bytes / limits.min_body_bytes_per_s:
            self._refuse(error_responses.too_slow("request body", limits.body_timeout_s))

    # what the parser calls

    def on_message_begin(self) -> None:
        if self._link.is_deaf or len(self._link.queue) >= _MAX_QUEUED:
            raise _RefusedError(error_responses.bad_http(f"more than {_MAX_QUEUED} requests were sent ahead"))
        self.request = Request()
        self._head_bytes = self._num_loose = 0
        self._wire_bytes, self._first_bytes = self._first_bytes, 0  # all of the block, where it began the block
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        assert self.request is not None
        self._count_head(len(url))
        self.request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        request = self.request
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
        request = self.request
        assert request is not None
        self._in_head = False
        self._complete_head(request)
        if request.refusal is not None:
            raise _RefusedError(request.refusal)
        if _waits_for_word(request):
            self._link.owes_word = True
            self._link.give_word()

    def on_body(self, body: bytes) -> None:
        request = self.request
        assert request is not None
        size = len(body)
        request.held_bytes += size
        self._state.held_bytes += size
        if request.held_bytes > self._state.limits.max_body_bytes:
            raise _RefusedError(error_responses.body_too_large(self._state.limits.max_body_bytes))
        if self._state.held_bytes > self._state.limits.max_held_bytes:
            raise _RefusedError(error_responses.overloaded_memory())
        pieces = request.pieces
        pieces.append(body)
        self._num_loose += 1
        if self._num_loose >= _MAX_LOOSE:
            pieces[-_MAX_LOOSE:] = [b"".join(pieces[-_MAX_LOOSE:])]
            self._num_loose = 0

    def on_message_complete(self) -> None:
        request = self.request
        assert request is not None
        if not request.keep_alive and self._parser.should_upgrade() and _has_body(request):
            return  # of a request that offers another protocol, the parser leaves the body out
        self.request = None
        self._link.owes_word = False
        if self._first_block is not None:
            self._state.heads.learn(self._first_block, request)
            self._first_block = None
        link = self._link
        if not request.keep_alive:
            link.is_deaf = True
        link.accept(request)
        if link.queue:
            link.pause_reading()

    # limits

    def _complete_head(self, request: Request) -> None:
        parser, noted = self._parser, request.noted
        request.method = parser.get_method().decode("latin-1")
        request.url, deployment = own_target(request.url)
        if deployment:
            noted[DEPLOYMENT] = deployment
        version = parser.get_http_version()
        request.http_1_0 = version == "1.0"
        request.keep_alive = parser.should_keep_alive() and not request.http_1_0 and not parser.should_upgrade()
        given = noted.get(b"x-request-id")
        is_good = given is not None and _REQUEST_ID.fullmatch(given)
        request.request_id = given.decode("ascii") if given is not None and is_good else self._state.new_request_id()
        if style_of(request) is ErrorStyle.ANTHROPIC:
            request.extra_lines = b"request-id: %b\r\n" % request.request_id.encode()
        named = connection_tokens(noted.get(b"connection", b"")) - _ORDINARY_CONNECTION
        if named:
            request.forwarded = without_named(request.forwarded, named)
        request.refusal = _head_refusal(request, version, self._state.limits)

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > self._state.limits.max_head_bytes:
            raise _RefusedError(error_responses.head_too_large(self._state.limits.max_head_bytes))

    def _check_block(self) -> None:
        """Refuse too much of what the parser keeps to itself: unfinished header lines, chunk extensions."""
        request, limits = self.request, self._state.limits
        if request is None:
            return
        if self._in_head and self._wire_bytes > limits.max_head_bytes:
            self._refuse(error_responses.head_too_large(limits.max_head_bytes))
        elif self._wire_bytes > 2 * limits.max_head_bytes + 262144 + _MAX_FRAMING_RATIO * request.held_bytes:
            self._refuse(error_responses.bad_http("its chunks are mostly framing"))

    def _read_plain_body(self, request: Request, rest: bytes) -> None:
        """Read the body of a request that offers another protocol. rest: what has come of it"""
        head_bytes = self._head_bytes
        self._parser = httptools.HttpRequestParser(_BodyListener(self))
        self._parser.feed_data(_plain_head(request))
        self._head_bytes = head_bytes
        if rest:
            self._parser.feed_data(rest)

    def _refuse(self, refusal: Refusal) -> None:
        """Queue the answer to a request that cannot be read to its end; nothing after it is read."""
        if self._link.is_deaf:  # what follows a request that said `Connection: close` has no meaning
            return
        request = self.request or Request()
        self.request = None
        self._link.is_deaf = True
        self._link.release(request)
        request.refusal = refusal
        request.keep_alive = False
        request.request_id = request.request_id or self._state.new_request_id()
        self._link.accept(request)


class _BodyListener:
    """The listener of a parser that reads the body of a request whose head was read before, and nothing after it."""

    def __init__(self, reader: RequestReader) -> None:
        self.on_header = reader.on_header  # counts trailers
        self.on_body = reader.on_body
        self.on_message_complete = reader.on_message_complete


def _has_body(request: Request) -> bool:
    """Return whether a body follows the head, as the parser that accepted the head understands it."""
    noted = request.noted
    length = int(noted.get(b"content-length", b"0"))
    return request.method != "CONNECT" and (length > 0 or b"transfer-encoding" in noted)


def _plain_head(request: Request) -> bytes:
    """Return a head that announces the same body, offers no other protocol, and lets nothing follow the body."""
    noted = request.noted
    framing = b"transfer-encoding: chunked"
    if b"transfer-encoding" not in noted:
        framing = b"content-length: %d" % int(noted[b"content-length"])
    return b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%b\r\n\r\n" % framing


def _waits_for_word(request: Request) -> bool:
    """Return whether the client sends the body only after the gateway agreed."""
    return not request.http_1_0 and request.noted.get(b"expect", b"").lower() == b"100-continue"


def _head_refusal(request: Request, version: str, limits: GatewayLimits) -> Refusal | None:
    noted = request.noted
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


class _RefusedError(Exception):
    """Carries a refusal out of a parser's callback."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal
