"""Frames an engine's response for the client. Pure: bytes in, bytes out."""

from __future__ import annotations

from typing import Final

from longboat.gateway.http.responses import ErrorStyle, error_event
from longboat.gateway.http.wire import Framing

__all__ = ("Relay", "last_chunk")

_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n")
_CHUNKED: Final = Framing.CHUNKED
_MAX_TAIL_BYTES: Final = 1024 * 1024


class Relay:
    """One response body on its way to the client.

    The head waits for the first block of the body, so that a request whose engine dies before that can still go to
    another engine.
    """

    __slots__ = ("_chunked", "_head", "_style", "_tail", "_torn", "bytes_out", "events", "started")

    def __init__(self, head: bytes, framing: Framing, *, events: bool, style: ErrorStyle = ErrorStyle.OPENAI) -> None:
        self._head = head
        self._chunked = framing is _CHUNKED
        self._tail = b""
        self._torn = False
        self._style = style
        # The body is a stream of server-sent events. Only whole events are passed on, so that an error event can be
        # added between two of them when the engine dies.
        self.events = events
        self.started = False  # the client got some bytes
        self.bytes_out = 0  # bytes of the body that the client got

    def whole_events(self, body: bytes, *, last: bool) -> bytes:
        """Return the part of ``body`` to pass on: up to the end of the last whole event."""
        if self._tail or not (last or not body or body.endswith(_EVENT_ENDS)):
            return self._rejoined(body, last=last)
        return body

    def framed(self, body: bytes, *, last: bool) -> bytes:
        """Return the bytes that the client gets for a part of the body; may be empty."""
        if not body and not last:
            return b""
        self.bytes_out += len(body)
        if self._chunked:
            body = last_chunk(body) if last else b"%x\r\n%b\r\n" % (len(body), body)
        if self.started:
            return body
        self.started = True
        return self._head + body

    @property
    def passes_chunks(self) -> bool:
        """Whether a chunk of whole events may go to the client unchanged: no bytes before it are held back."""
        return self.started and self.events and self._chunked and not self._tail and not self._torn

    def add_lines(self, lines: bytes) -> None:
        """Add whole header lines to a head that was not sent yet."""
        self._head = self._head[:-2] + lines + b"\r\n"

    def forget_tail(self) -> bool:
        """Drop the half of an event whose rest will not come. Return whether the client has whole events only."""
        self._tail = b""
        return not self._torn

    @property
    def holds_tail(self) -> bool:
        """Whether half of an event waits for its rest."""
        return bool(self._tail)

    @property
    def is_whole(self) -> bool:
        """Whether the client has whole events only."""
        return not self._torn

    def comment(self, text: bytes) -> bytes:
        """Frame a whole comment between two events, with the head where it was not sent yet."""
        framed = b"%x\r\n%b\r\n" % (len(text), text) if self._chunked else text
        if self.started:
            return framed
        self.started = True
        return self._head + framed

    def broken(self, message: str, code: str, request_id: str = "") -> bytes:
        """Return the end of a started stream of events whose engine died: an event with the error, and a proper end."""
        event = error_event(message, code, style=self._style, request_id=request_id)
        if self._torn:
            event = b"\n\n" + event
        self.bytes_out += len(event)
        return last_chunk(event) if self._chunked else event

    def _rejoined(self, body: bytes, *, last: bool) -> bytes:
        """Join ``body`` to the held-back tail, and return it up to the end of its last whole event."""
        body, self._tail = self._tail + body, b""
        if last or body.endswith(_EVENT_ENDS):
            self._torn = False
            return body
        cut = max(_after_last(body, end) for end in _EVENT_ENDS)
        if len(body) - cut > _MAX_TAIL_BYTES:
            self._torn = True
            return body
        self._tail = body[cut:]
        return body[:cut]


def _after_last(body: bytes, end: bytes) -> int:
    at = body.rfind(end)
    return at + len(end) if at >= 0 else 0


def last_chunk(body: bytes) -> bytes:
    """Return the last chunk of a body and the mark of its end."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
