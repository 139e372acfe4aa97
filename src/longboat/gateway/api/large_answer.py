"""Reads the usage of a whole response that is too large to keep, part by part.

Only the members of the document itself count: engines repeat a client's ``metadata`` and ``tools`` in their responses,
and those may have objects of the same name.
"""

from __future__ import annotations

import re
from typing import Final

from longboat.gateway.api.usage_shapes import UNREADABLE, USAGE, UsageShape

__all__ = ("LargeAnswer",)

_SPACE: Final = rb"[ \t\r\n]{0,16}"
_MEMBER: Final = re.compile(rb'"(?:usage"%(space)b:%(space)b\{|type"%(space)b:%(space)b"message")' % {b"space": _SPACE})
_MAX_USAGE_BYTES: Final = 4096
_MAX_MEMBER_BYTES: Final = _MAX_USAGE_BYTES + 64
_PART_BYTES: Final = 65536


class LargeAnswer:
    """What is known of a response so far. Each part is passed once, and no text in it is decoded."""

    __slots__ = ("_depth", "_escape", "_in_text", "_rest", "is_message", "usage")

    def __init__(self) -> None:
        self.usage: UsageShape | None = None
        self.is_message = False  # of Anthropic's API
        self._depth = 0
        self._in_text = False
        self._escape = b""  # a backslash whose character has not been passed yet
        self._rest = b""  # the end that was not passed, because a member may go on in the next part

    def feed(self, block: bytes) -> None:
        """Read the next block. It is read in parts: that takes a third of the time, and little memory."""
        for at in range(0, len(block), _PART_BYTES):
            part = self._rest + block[at : at + _PART_BYTES]
            self._rest = self._read(part, max(0, len(part) - _MAX_MEMBER_BYTES))

    def end(self) -> None:
        """Read what is left at the end of the response."""
        self._rest = self._read(self._rest, len(self._rest))

    def _read(self, part: bytes, end: int) -> bytes:
        """Read the members that begin before ``end``, and return what comes after it."""
        at = 0
        for found in _MEMBER.finditer(part):
            start = found.start()
            if start >= end:
                break
            self._pass(part[at:start])
            at = start
            if self._depth == 1 and not self._in_text:
                self._note(part, found.end())
        self._pass(part[at:end])
        return part[end:]

    def _note(self, part: bytes, end: int) -> None:
        """Note a member of the document by the end of what was found of it."""
        if part[end - 1 : end] == b"{":
            self.usage = _object_at(part, end - 1) or self.usage
        else:
            self.is_message = True

    def _pass(self, span: bytes) -> None:
        """Count the objects, lists and texts that begin and end in a span."""
        if self._escape or b"\\" in span:
            span = (self._escape + span).replace(b"\\\\", b"").replace(b'\\"', b"")
            self._escape = b"\\" if span.endswith(b"\\") else b""
        pieces = span.split(b'"')
        outside = b"".join(pieces[int(self._in_text) :: 2])
        self._in_text ^= len(pieces) % 2 == 0
        self._depth += outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")


def _object_at(part: bytes, start: int) -> UsageShape | None:
    """Return the usage that begins here; None where it has another shape or no end."""
    end = start
    while (end := part.find(b"}", end, start + _MAX_USAGE_BYTES) + 1) > 0:
        if part.count(b"{", start, end) == part.count(b"}", start, end):
            return _decoded(part[start:end])
    return None


def _decoded(usage: bytes) -> UsageShape | None:
    try:
        return USAGE.decode(usage)
    except UNREADABLE:
        return None
