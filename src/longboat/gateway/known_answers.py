"""Reads the answers that engines give over and over without a parser: heads that came before, and whole chunks."""

from __future__ import annotations

from longboat.gateway.answer_head import AnswerHead
from longboat.gateway.native import head_of

__all__ = ("KnownAnswer", "known_answer", "learn_answer", "whole_chunks")

_MAX_HEAD_BYTES = 4096
_MAX_KNOWN = 1024
_LAST = b"0\r\n\r\n"
_SIZES = {b"%x" % size: size for size in range(1, 16384)}


class KnownAnswer:
    """What the parser made of a head, and whether its connection can be used again."""

    __slots__ = ("head", "reusable")

    def __init__(self, head: AnswerHead, *, reusable: bool) -> None:
        self.head = head
        self.reusable = reusable


_known: dict[bytes, KnownAnswer] = {}


def known_answer(data: bytes) -> tuple[KnownAnswer, int, int] | None:
    """The answer that ``data`` begins, where its head came before: where its body begins, and its length, -1 if it
    comes in chunks."""
    seen = head_of(data, _MAX_HEAD_BYTES)
    if seen is None:
        return None
    key, body_at, length = seen
    found = _known.get(key)
    if found is None or (found.head.length is None) is not (length < 0):  # without the digits it is none
        return None
    return found, body_at, length


def learn_answer(data: bytes, head: AnswerHead, *, reusable: bool) -> None:
    """``data`` began with an answer's head, which the parser read and nothing was wrong with."""
    seen = head_of(data, _MAX_HEAD_BYTES)
    if seen is None or head.until_end or head.status in (204, 304):
        return
    key, body_at, length = seen
    if not key.startswith(b"HTTP/1.1 ") or key.count(b"\n") != key.count(b"\r\n"):
        return  # the parser passes over empty lines before it
    if head.length is not None:
        if length != head.length or data[: body_at - 2].lower().count(b"\r\ncontent-length:") != 1:
            return
    elif length >= 0:
        return
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[key] = KnownAnswer(head, reusable=reusable)


def whole_chunks(data: bytes, at: int = 0) -> tuple[bytes, bool] | None:
    """The body that ``data`` brings from ``at`` on, where it is whole chunks and nothing else; and whether the last."""
    pieces: list[bytes] = []
    size_bytes = len(data)
    while at < size_bytes:
        if data.startswith(_LAST, at):
            return (b"".join(pieces), True) if at + 5 == size_bytes else None
        end = data.find(b"\r\n", at, at + 6)
        size = _SIZES.get(data[at:end]) if end > 0 else None
        if size is None:
            return None
        begin, at = end + 2, end + 4 + size
        if data[at - 2 : at] != b"\r\n":
            return None
        pieces.append(data[begin : at - 2])
    return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), False
