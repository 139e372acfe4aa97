"""Frames an engine's response for the client. Pure: bytes in, bytes out."""

from __future__ import annotations

from typing import Final

from longboat.gateway.http.responses import ErrorStyle, error_event
from longboat.gateway.http.wire import Framing

__all__ = ("Relay", "last_chunk")

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
_CHUNKED: Final = Framing.CHUNKED
_MAX_TAIL_BYTES = 1024 * 1024


class Relay:
    """One response body on its way. The head is held back until there is a body block to send with it, so that a
    request whose engine dies before its first word can still go to another.

    events: the body is a stream of server-sent events; only whole events are passed on, so that an error event can
    be added between two of them when the engine dies
    started: something was handed out; bytes_out: body bytes handed out
    """

    __slots__ = ("_chunked", "_head", "_style", "_tail", "_torn", "bytes_out", "events", "started")

    def __init__(self, head: bytes, framing: Framing, *, events: bool, style: ErrorStyle = ErrorStyle.OPENAI) -> None:
        self._head = head
        self._chunked = framing is _CHUNKED
        self._tail = b""
        self._torn = False
        self._style = style
        self.events = events
        self.started = False
        self.bytes_out = 0

    def whole_events(self, body: bytes, *, last: bool) -> bytes:
        """What may be passed on of the bytes that arrived together: up to the end of the last whole event."""
        if self._tail or not (last or not body or body.endswith(_EVENT_ENDS)):
            return self._rejoined(body, last=last)
        return body

    def framed(self, body: bytes, *, last: bool) -> bytes:
        """What the client gets for a part of the body; may be empty."""
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
        """Whether a chunk of whole events may go to the client as it came: nothing is held back before it."""
        return self.started and self.events and self._chunked and not self._tail and not self._torn

    def add_lines(self, lines: bytes) -> None:
        """Whole header lines, to a head that was not handed out yet."""
        self._head = self._head[:-2] + lines + b"\r\n"

    def forget_tail(self) -> bool:
        """Drop the half of an event whose rest will not come. Whether the client has whole events only."""
        self._tail = b""
        return not self._torn

    @property
    def holds_tail(self) -> bool:
        """Whether half of an event waits for its rest."""
        return bool(self._tail)

    def comment(self, text: bytes) -> bytes:
        """A whole comment between two events of a stream, with the head where it was not sent yet."""
        framed = b"%x\r\n%b\r\n" % (len(text), text) if self._chunked else text
        if self.started:
            return framed
        self.started = True
        return self._head + framed

    def broken(self, message: str, code: str, request_id: str = "") -> bytes:
        """What ends a started stream of events whose engine died: an event that says so, and a proper end."""
        event = error_event(message, code, style=self._style, request_id=request_id)
        if self._torn:
            event = b"\n\n" + event
        self.bytes_out += len(event)
        return last_chunk(event) if self._chunked else event

    def _rejoined(self, body: bytes, *, last: bool) -> bytes:
        """The held-back tail with what followed it, up to the end of its last whole event."""
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
    """The last of a body in chunks, and what ends these."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
