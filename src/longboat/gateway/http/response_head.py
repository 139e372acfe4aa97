"""The head of an engine's answer, as the gateway needs it: read once for all answers that have the same."""

from __future__ import annotations

from typing import Final

from longboat.gateway.http.responses import status_line
from longboat.gateway.http.wire import Framing, end_to_end_lines

__all__ = ("ResponseHead", "ResponseHeadError", "parse_response_head")

_MAX_KNOWN = 1024
_CHUNKED: Final = Framing.CHUNKED


class ResponseHeadError(Exception):
    """The head is well-formed HTTP, but no answer can be read by it."""


class ResponseHead:
    """length: the body's, where the engine told it; sized: it did, or there is none; until_end: the connection's end
    ends the body; events: its body is a stream of server-sent events; journaled: in which the engine tells token ids
    to us
    """

    __slots__ = ("_lines", "events", "journaled", "length", "sized", "status", "until_end")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """:raises ResponseHeadError: the body is framed in a way that is not HTTP/1.1's"""
        self.status = status
        self.sized = status in (204, 304)
        self.until_end = not self.sized
        self.events = self.journaled = False
        self.length: int | None = None
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-length":
                self.sized, self.until_end = True, False
                self.length = int(value) if value.isdigit() else None
            elif lower == b"transfer-encoding":
                if value.strip().lower() != b"chunked":
                    raise ResponseHeadError("unknown transfer encoding")
                self.until_end = False
            elif lower == b"content-type":
                self.events = self.events or value.lower().startswith(b"text/event-stream")
            elif lower == b"x-longboat-journal":
                self.journaled = True
        kept = [item for item in headers if item[0].lower() != b"content-length"]
        self._lines = status_line(status) + end_to_end_lines(kept)

    def for_client(
        self,
        framing: Framing,
        *,
        sized: bool,
        request_id: str,
        replica: str,
        close: bool,
        extra: bytes = b"",
        length: int | None = None,
    ) -> bytes:
        """The head that the client gets: the engine's end-to-end headers and our own. extra: whole lines.

        sized: the engine's length stays true; length: that of this answer where the head is known from another
        """
        own = f"x-request-id: {request_id}\r\nx-longboat-replica: {replica}\r\n".encode("latin-1", "replace")
        if framing is _CHUNKED:
            coding = b"transfer-encoding: chunked\r\n"
        else:
            length = self.length if length is None else length
            coding = b"content-length: %d\r\n" % length if sized and length is not None else b""
        end = b"connection: close\r\n\r\n" if close else b"\r\n"
        return b"".join((self._lines, own, extra, coding, end))


_known: dict[tuple[object, ...], ResponseHead] = {}


def parse_response_head(status: int, headers: list[tuple[bytes, bytes]]) -> ResponseHead:
    """:raises ResponseHeadError: see there"""
    key = (status, *headers)
    head = _known.get(key)
    if head is None:
        head = ResponseHead(status, headers)
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = head
    return head
