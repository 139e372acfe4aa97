"""Heads of requests that came before: a client's next request differs from its last one only in its body's length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longboat.gateway.http.request import Request
from longboat.gateway.native.leaf_work import head_of

if TYPE_CHECKING:
    from longboat.gateway.requests.fast_path import Plan

__all__ = ("KnownHead", "KnownHeads")

_MAX_HEADS = 4096
_MAX_HEAD_BYTES = 8192
_OF_ONE_REQUEST = frozenset(
    b"x-request-id traceparent tracestate x-request-deadline last-event-id x-longboat-resume"
    b" transfer-encoding expect upgrade content-encoding".split()
)
"""Headers that change with each request, or how it is read: heads with them are not remembered."""


class KnownHead:
    """What the parser made of a head. Shared by all requests that have it: never change what it holds.

    plan: what ``quick`` made of it
    """

    __slots__ = ("forwarded", "method", "noted", "plan", "url")

    def __init__(self, request: Request) -> None:
        self.method = request.method
        self.url = request.url
        self.noted = request.noted
        self.forwarded = request.forwarded
        self.plan: Plan | None = None

    def request(self, body: bytes) -> Request:
        """A new request with this head. It has no id yet."""
        request = Request(self.url, self.method, "", self.noted, self.forwarded)
        request.pieces.append(body)
        request.held_bytes = len(body)
        return request


class KnownHeads:
    """Heads by their bytes without the digits of Content-Length, so that equal bytes mean an equal reading.

    Only what the parser read whole, and the gateway did not refuse, is learned. All is forgotten when it is too much.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def match(self, data: bytes) -> tuple[KnownHead, int] | None:
        """Where ``data`` is exactly one request with a known head: that head, and where its body begins."""
        found = head_of(data, _MAX_HEAD_BYTES)
        if found is None:
            return None
        key, body_at, length = found
        if len(data) - body_at != length:
            return None
        head = self._heads.get(key)
        return None if head is None else (head, body_at)

    def learn(self, data: bytes, request: Request) -> None:
        """``data`` began with the head of ``request``, which the parser read and nothing was wrong with."""
        if not request.keep_alive or not _OF_ONE_REQUEST.isdisjoint(request.noted):
            return
        found = head_of(data, _MAX_HEAD_BYTES)
        if found is None or request.noted.get(b"content-length") != b"%d" % found[2]:
            return
        head = data[: found[1] - 4]
        if head.count(b"\n") != head.count(b"\r\n") or not head.startswith(b"POST "):
            return
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[found[0]] = KnownHead(request)
