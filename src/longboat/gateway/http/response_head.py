"""The head of an engine's response, as the gateway needs it; equal heads are parsed once."""

from __future__ import annotations

from typing import Final

from longboat.gateway.http.responses import status_line
from longboat.gateway.http.wire import Framing, end_to_end_lines

__all__ = ("ResponseHead", "ResponseHeadError", "parse_response_head", "replica_line")

_MAX_KNOWN: Final = 1024
_CHUNKED: Final = Framing.CHUNKED


class ResponseHeadError(Exception):
    """A head that is well-formed HTTP, but frames the body in a way that cannot be read."""


class ResponseHead:
    """The parsed head of an engine's response."""

    __slots__ = (
        "_lines", "events", "journaled", "length", "retry_after", "sized", "status", "tells_apart", "until_end",
    )  # fmt: skip

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """:raises ResponseHeadError: the body is framed in a way that is not HTTP/1.1's"""
        self.status = status
        self.sized = status in (204, 304)  # the engine stated the length, or there is no body
        self.until_end = not self.sized  # the end of the connection ends the body
        self.events = False  # the body is a stream of server-sent events
        self.journaled = False  # the events carry the engine's token ids for the gateway
        self.tells_apart = False  # it told the carried tokens before, and not with, those that follow
        self.length: int | None = None  # of the body, where the engine stated it
        self.retry_after: str | None = None
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
                self.tells_apart = value.strip() == b"apart"
            elif lower == b"retry-after":
                self.retry_after = value.decode("latin-1")
        kept = [item for item in headers if item[0].lower() != b"content-length"]
        self._lines = status_line(status) + end_to_end_lines(kept)

    def for_client(
        self,
        framing: Framing,
        *,
        sized: bool,
        request_id: str,
        replica: bytes,
        close: bool,
        extra: bytes = b"",
        length: int | None = None,
    ) -> bytes:
        """Return the head that the client gets: the engine's end-to-end headers, and the gateway's own.

        sized: the engine's length stays true; length: of this response, where the head is known from another one
        request_id: of ASCII characters; replica: its line of the head, see ``replica_line``; extra: whole lines
        """
        if framing is _CHUNKED:
            coding = b"transfer-encoding: chunked\r\n"
        else:
            length = self.length if length is None else length
            coding = b"content-length: %d\r\n" % length if sized and length is not None else b""
        end = b"connection: close\r\n\r\n" if close else b"\r\n"
        own = request_id.encode()
        return b"%bx-request-id: %b\r\n%b%b%b%b" % (self._lines, own, replica, extra, coding, end)


def replica_line(replica: str) -> bytes:
    """Return the header line that names a replica to clients."""
    return b"x-longboat-replica: %b\r\n" % replica.encode("latin-1", "replace")


_known: Final[dict[tuple[object, ...], ResponseHead]] = {}


def parse_response_head(status: int, headers: list[tuple[bytes, bytes]]) -> ResponseHead:
    """Return the head of these headers.

    :raises ResponseHeadError: see ``ResponseHead``
    """
    key = (status, *headers)
    head = _known.get(key)
    if head is None:
        head = ResponseHead(status, headers)
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = head
    return head
