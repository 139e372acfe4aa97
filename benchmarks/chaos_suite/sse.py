"""Server-sent events out of bytes that come in any pieces, as the standard has them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ("EventReader", "ServerEvent")


_COMMENT = "x-longboat-resume: "


class ServerEvent(NamedTuple):
    """``name`` and ``event_id`` are empty where the stream has none."""

    name: str
    event_id: str
    data: str


class EventReader:
    """Feed it bytes; an event comes out when its blank line is there. Comments are passed over, and counted."""

    def __init__(self) -> None:
        self._held = b""
        self._name = self._id = ""
        self._data: list[str] = []
        self.num_comments = 0
        self.token = ""  # of the last comment that told one

    def feed(self, data: bytes) -> list[ServerEvent]:
        """:raises UnicodeDecodeError: a line is no UTF-8"""
        *lines, self._held = (self._held + data).split(b"\n")
        taken = (self._take(line.rstrip(b"\r").decode()) for line in lines)
        return [event for event in taken if event is not None]

    def _take(self, line: str) -> ServerEvent | None:
        if line.startswith(":"):
            self.num_comments += 1
            self.token = line.partition(_COMMENT)[2] or self.token
            return None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id":
            self._id = value
        elif not line and self._data:
            event = ServerEvent(self._name, self._id, "\n".join(self._data))
            self._name, self._data = "", []
            return event
        return None
