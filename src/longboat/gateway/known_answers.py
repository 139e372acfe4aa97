"""Reads the answers that engines give over and over without a parser: heads that came before, and whole chunks."""

from __future__ import annotations

import re

from longboat.gateway.answer_head import AnswerHead

__all__ = ("KnownAnswer", "known_answer", "learn_answer", "whole_chunks")

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,15})(?=\r\n|$)")
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
    end = data.find(_END, 0, _MAX_HEAD_BYTES)
    if end < 0:
        return None
    found = _known.get(data[:end])
    if found is not None:
        return None if found.head.length is not None else (found, end + 4, -1)  # without the digits it is none
    length = _LENGTH.search(data, 0, end)
    if length is None:
        return None
    found = _known.get(data[: length.start(1)] + data[length.end(1) : end])
    return None if found is None else (found, end + 4, int(length[1]))


def learn_answer(data: bytes, head: AnswerHead, *, reusable: bool) -> None:
    """``data`` began with an answer's head, which the parser read and nothing was wrong with."""
    end = data.find(_END, 0, _MAX_HEAD_BYTES)
    if end < 0 or head.until_end or head.status in (204, 304):
        return
    key = data[:end]
    if not key.startswith(b"HTTP/1.1 ") or key.count(b"\n") != key.count(b"\r\n"):
        return  # the parser passes over empty lines before it
    if head.length is not None:
        length = _LENGTH.search(data, 0, end)
        if length is None or int(length[1]) != head.length or _LENGTH.search(data, length.end(), end) is not None:
            return
        key = data[: length.start(1)] + data[length.end(1) : end]
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
