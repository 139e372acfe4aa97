"""One connection to an engine, and its reading of responses."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import httptools

from longboat.compiled import mypyc_attr
from longboat.gateway.http.response_head import ResponseHead, ResponseHeadError, parse_response_head
from longboat.gateway.native.leaf_work import ChunkPath, whole_chunks
from longboat.gateway.upstreams.protocol import EngineProtocol
from longboat.gateway.upstreams.response_head_cache import CachedResponseHead, cache_response_head, cached_response_head

__all__ = ("ResponseSink", "UpstreamConnection")


# They detect a host that vanished in about 11 s, even while nothing is sent to it.
_MAX_HEAD_BYTES = 256 * 1024
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
)


@mypyc_attr(allow_interpreted_subclasses=True)
class ResponseSink:
    """The receiver of a response: its head, its body block by block, and its end. A class, so that calls are compiled.

    Where it sets the connection's ``write`` and ``direct`` (see ``ChunkPath``), whole chunks go there as they arrive.
    """

    __slots__ = ()

    def on_head(self, head: ResponseHead, length: int | None = None) -> None:
        """Take the head, with which the response begins. Raises nothing.

        length: of the body, where the head is known from another response
        """
        raise NotImplementedError

    def on_whole(self, head: ResponseHead, length: int, body: bytes) -> None:
        """Take a response that arrived in one piece, head and body. The connection is free again.

        length: of the body; -1 where the head does not state it
        """
        raise NotImplementedError

    def on_block(self, body: bytes, *, last: bool) -> None:
        """Take all of the body that arrived together. last: the response is complete and the connection free again"""
        raise NotImplementedError

    def on_lost(self, detail: str) -> None:
        """End the response: the connection ended, or broke the protocol, before the response was complete."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class UpstreamConnection:  # size: the parser calls seven of its methods, and reading is one state machine
    """One connection to an engine. It carries one request at a time, and delivers each block of body as it arrives.

    A response whose head is known and whose body is in whole chunks or of known length does without the parser. Where
    it turns out to be of another kind, the parser gets its head and continues from there.
    """

    __slots__ = (
        "_at_start",
        "_complete",
        "_ended",
        "_head_room",
        "_headers",
        "_interim",
        "_keep",
        "_left",
        "_parser",
        "_paused",
        "_pieces",
        "_reusable",
        "_sink",
        "_transport",
        "_unparsed_head",
        "_until_end",
        "_wrote_much",
        "path",
        "used",
    )

    def __init__(self, keep: Callable[[UpstreamConnection], None]) -> None:
        """keep: takes the connection when it is free for another request"""
        self.path: ChunkPath = EngineProtocol(self)
        self._keep = keep
        self._transport: Any = None
        self._parser: Any = None  # of this response; None while it needs none
        self._sink: ResponseSink | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_room = _MAX_HEAD_BYTES
        self._pieces: list[bytes] = []
        self._at_start = False  # nothing of the response arrived yet
        self._complete = False
        self._interim = False
        self._until_end = False
        self._reusable = False
        self._left = -1  # bytes still missing of a body of known length; -1: it is in chunks, or parsed
        self._ended = False  # by the engine or by this process: nothing can be sent any more
        self._paused = False
        self._wrote_much = False  # a part of the request may not be sent yet
        self._unparsed_head = b""  # what the parser must get before anything else
        self.used = False  # has carried a complete response

    # what the exchange calls

    @property
    def usable(self) -> bool:
        """Whether a request can be sent on it."""
        return self._transport is not None and not self._ended

    def send(self, sink: ResponseSink, head: bytes, body: bytes) -> None:
        """Send one request; its response goes to ``sink``."""
        self._sink = sink
        self._complete = self._interim = self._until_end = False
        self.path.reset()
        self._at_start = True
        self._left = -1
        self._parser = None
        self._wrote_much = len(body) >= 65536
        if self._wrote_much:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)

    def pause(self) -> None:
        if self.usable:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.usable:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Give the response up: the engine sees the connection end at once."""
        self._sink = self.path.write = None
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self._sink = None
        self._ended = True
        if self._transport is not None:
            self._transport.close()

    # what its protocol calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        sock = transport.get_extra_info("socket")
        for level, option, value in _SOCKET_OPTIONS:
            sock.setsockopt(level, option, value)

    def eof_received(self) -> None:
        """Stop using the connection; the loop closes it and calls ``connection_lost`` in a moment."""
        self._ended = True

    def data_arrived(self, data: bytes) -> None:
        """Read what does not take the short way of ``ChunkPath``."""
        sink = self._sink
        if sink is None:  # bytes without a request: they would be mistaken for the next response
            self.abort()
            return
        if self._at_start:  # the path is not between chunks yet
            self._at_start = False
            known = cached_response_head(data)
            if known is not None:
                self._begin(sink, data, known)
                return
        elif self.path.between_chunks:
            # The parser is between two chunks before these bytes and after them, so it need not see them.
            chunks = whole_chunks(data, 0)
            if chunks is not None:
                self._deliver_chunks(sink, chunks)
                return
        elif self._left >= 0:
            self._deliver_part(sink, data)
            return
        self._parse(sink, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.path.owner = None  # they refer to each other
        self._transport = None
        self._parser = None
        sink = self._sink
        if sink is None:
            return
        if self._until_end and error is None:
            self._sink = None
            sink.on_block(b"", last=True)
        else:
            self._lose(str(error) if error else "it closed the connection")

    # without the parser

    def _begin(self, sink: ResponseSink, data: bytes, known: tuple[CachedResponseHead, int, int]) -> None:
        answer, body_at, length = known
        self._reusable = answer.reusable
        if length >= 0:
            if len(data) == body_at + length:
                self._free()
                sink.on_whole(answer.head, length, data[body_at:])
                return
            sink.on_head(answer.head, length)
            self._left = length
            if len(data) > body_at or not length:
                self._deliver_part(sink, data[body_at:])
            return
        chunks = whole_chunks(data, body_at) if len(data) > body_at else None
        if chunks is not None and chunks[1]:
            self._complete = True
            self._free()
            sink.on_whole(answer.head, -1, chunks[0])
            return
        self._unparsed_head = data[:body_at]
        self.path.between_chunks = True
        sink.on_head(answer.head)
        if len(data) == body_at:
            return
        if chunks is None:
            self._parse(sink, data[body_at:])
        else:
            self._deliver_chunks(sink, chunks)

    def _deliver_chunks(self, sink: ResponseSink, chunks: tuple[bytes, bool]) -> None:
        body, self._complete = chunks
        if self._complete:
            self._release()
        sink.on_block(body, last=self._complete)

    def _deliver_part(self, sink: ResponseSink, data: bytes) -> None:
        """Deliver a part of a body whose length is known."""
        left = self._left - len(data)
        if left < 0 and not data[self._left :].strip(b"\r\n"):  # a line end after the body is ignored
            data, left = data[: self._left], 0
        if left < 0:
            self._lose("it sent more than it had announced")
            return
        self._left = left
        if not left:
            self._complete = True
            self._release()
        sink.on_block(data, last=not left)

    # with the parser

    def _parse(self, sink: ResponseSink, data: bytes) -> None:
        parser = self._parser
        try:
            if parser is None:
                parser = self._parser = httptools.HttpResponseParser(self)
                if self.path.between_chunks:
                    parser.feed_data(self._unparsed_head)
                else:
                    self._unparsed_head = data  # it may be a whole response head
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, ResponseHeadError):
                raise  # a defect of Longboat: the loop reports it and closes the connection
            self._lose(f"its response is not HTTP: {cause or error}")
            return
        if self.path.between_chunks and not data.endswith(b"\r\n"):
            self.path.between_chunks = False  # the parser has a part of the next chunk's size
        pieces = self._pieces
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._deliver(sink, body)
        elif self._complete:
            self._deliver(sink, b"")

    # what the parser calls

    def on_message_begin(self) -> None:
        if self._complete:
            raise ResponseHeadError("a second response to one request")
        self._headers = []
        self._head_room = _MAX_HEAD_BYTES

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_room -= len(name) + len(value)
        if self._head_room < 0:
            raise ResponseHeadError(f"a response head of more than {_MAX_HEAD_BYTES} bytes")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.path.between_chunks:  # the parser got the head of a response that began without it
            return
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            self._unparsed_head = b""  # the head that follows is another one
            return
        if self._sink is None:
            return
        head = parse_response_head(status, self._headers)
        self._until_end = head.until_end
        self._reusable = not head.until_end and self._parser.should_keep_alive()
        cache_response_head(self._unparsed_head, head, reusable=self._reusable)
        self._sink.on_head(head)

    def on_chunk_header(self) -> None:
        self.path.between_chunks = False

    def on_chunk_complete(self) -> None:
        self.path.between_chunks = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._complete = not self._interim

    def _deliver(self, sink: ResponseSink, body: bytes) -> None:
        if self._complete:
            self._release()
        sink.on_block(body, last=self._complete)

    def _release(self) -> None:
        self.path.write = None
        self._free()

    def _free(self) -> None:
        """End the response. ``path.write`` is None, as from ``send`` until chunks pass."""
        self._sink = None
        self.used = True
        self._unparsed_head = b""
        if self._reusable and self.usable and not (self._wrote_much and self._transport.get_write_buffer_size()):
            if self._paused:
                self.resume()
            self._keep(self)
        else:
            self.close()

    def _lose(self, detail: str) -> None:
        sink = self._sink
        self.abort()
        self._pieces.clear()
        if sink is not None:
            sink.on_lost(detail)
