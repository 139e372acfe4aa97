"""Recognizes response heads that an engine sent before, so that they are not parsed again."""

from __future__ import annotations

from typing import Final

from longboat.gateway.http.response_head import ResponseHead
from longboat.gateway.native.leaf_work import head_of

__all__ = ("CachedResponseHead", "cache_response_head", "cached_response_head")

_MAX_HEAD_BYTES: Final = 4096
_MAX_KNOWN: Final = 1024
_head_of: Final = head_of  # what is imported from C, compiled code would look up by its name each time


class CachedResponseHead:
    """A parsed head, and whether its connection can be used again."""

    __slots__ = ("head", "reusable")

    def __init__(self, head: ResponseHead, *, reusable: bool) -> None:
        self.head = head
        self.reusable = reusable


_known: Final[dict[bytes, CachedResponseHead]] = {}


def cached_response_head(data: bytes) -> tuple[CachedResponseHead, int, int] | None:
    """Return the known head with which ``data`` begins, where its body begins, and its length (-1: in chunks).

    None where the head is new.
    """
    seen = _head_of(data, _MAX_HEAD_BYTES)
    if seen is None:
        return None
    key, body_at, length = seen
    found = _known.get(key)
    if found is None or (found.head.length is None) is not (length < 0):  # the key lacks the digits
        return None
    return found, body_at, length


def cache_response_head(data: bytes, head: ResponseHead, *, reusable: bool) -> None:
    """Remember the head with which ``data`` begins, as the parser read it without an error."""
    seen = head_of(data, _MAX_HEAD_BYTES)
    if seen is None or head.until_end or head.status in (204, 304):
        return
    key, body_at, length = seen
    if not key.startswith(b"HTTP/1.1 ") or key.count(b"\n") != key.count(b"\r\n"):
        return  # the parser skips empty lines before a head
    if head.length is not None:
        if length != head.length or data[: body_at - 2].lower().count(b"\r\ncontent-length:") != 1:
            return
    elif length >= 0:
        return
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[key] = CachedResponseHead(head, reusable=reusable)
