"""The C extension in Python: the oracle that its tests compare it with."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Self

from longboat.gateway.native.leaf_work import counts_at

__all__ = ("ChunkPath", "Histogram", "TokenLog", "head_of", "numbered", "take_usage", "whole_chunks")

_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,15})\r\n")
_ID = re.compile(rb"id: ([0-9]{1,9})\n")
_IDS = re.compile(rb": ids [0-9 ,]*\n")
_LAST_CHUNK = b"0\r\n\r\n"
_SIZES = {b"%x\r\n" % size: size for size in range(1, 16384)}
_EVENT_END = b"\n\n\r\n"
_CHOICES_END = b"}]}\n\n\r\n"


def head_of(data: bytes, max_bytes: int, /) -> tuple[bytes, int, int] | None:
    """See ``longboat.gateway.native.leaf_work``."""
    end = data.find(b"\r\n\r\n", 0, max_bytes)
    if end < 0:
        return None
    found = _LENGTH.search(data, 0, end + 2)
    if found is None:
        return data[:end], end + 4, -1
    return data[: found.start(1)] + data[found.end(1) : end], end + 4, int(found[1])


def whole_chunks(data: bytes, at: int, /) -> tuple[bytes, bool] | None:
    """See ``longboat.gateway.native.leaf_work``."""
    pieces: list[bytes] = []
    size_bytes = len(data)
    while at < size_bytes:
        if data.startswith(_LAST_CHUNK, at):
            return (b"".join(pieces), True) if at + 5 == size_bytes else None
        end = data.find(b"\r\n", at, at + 6)
        size = _SIZES.get(data[at : end + 2]) if end > 0 else None
        if size is None:
            return None
        begin, at = end + 2, end + 4 + size
        if data[at - 2 : at] != b"\r\n":
            return None
        pieces.append(data[begin : at - 2])
    return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), False


def take_usage(block: bytes, /) -> tuple[bytes, int | None, int | None, int | None] | None:
    """See ``longboat.gateway.native.leaf_work``. What the event tells is read by ``counts_at``, which has tests too."""
    at = block.rfind(b'"usage":{')
    start = block.rfind(b"\n\n", 0, max(at, 0)) + 2
    start = 0 if start < 2 else start
    if at < 0 or not block.startswith(b"data: {", start):
        return None
    found = counts_at(block, start + 6)
    if found is None:
        return None
    end, num_choices, *counts = found
    if num_choices or block[end : end + 2] != b"\n\n":
        return None
    if block.find(b'"usage"', 0, start) >= 0 or block.find(b'"usage"', end) >= 0:
        return None
    prompt, completion, cached = counts
    return block[:start] + block[end + 2 :], prompt, completion, cached


class Histogram:
    """A histogram of times in seconds, as ``metrics.Series`` has it. bounds: ascending."""

    __slots__ = ("_bounds", "_counts", "_sum_s")

    def __init__(self, bounds: tuple[float, ...], /) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float, /) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum_s += seconds

    def counts(self) -> list[float]:
        """A count per bound, one for what is above, the sum."""
        return [*self._counts, self._sum_s]


def numbered(events: bytes, before: bytes, further: int, /) -> tuple[bytes, bytes, int, bool] | None:
    """See ``longboat.gateway.native.leaf_work``.

    before: the last id, b"" if there was none; further: how many events had the same since
    """
    if not events.endswith(b"\n\n"):
        return None
    out, told, at = [], True, 0
    while at < len(events):
        ids = _IDS.match(events, at)
        start = ids.end() if ids else at
        end = events.find(b"\n\n", start) + 2
        event = events[start:end]
        found, is_done = _ID.match(event), event == b"data: [DONE]\n\n"
        if end < 2 or event[:1] in (b":", b"\n") or b"\n:" in event or further > 999999:
            return None
        if found is None and not is_done:
            return None
        told = told and (ids is not None or is_done)
        if found is not None:
            further = further + 1 if found[1] == before else 0
            before = found[1]
            if further:
                event = b"id: %b+%d%b" % (before, further, event[found.end() - 1 :])
        out.append(event)
        at = end
    return b"".join(out), before, further, told


class TokenLog:
    """Events of a stream with their ids, as its chunks pass; no more than ``max_bytes`` of them."""

    __slots__ = ("_max_bytes", "_sent", "sent_bytes")

    def __init__(self, max_bytes: int, /) -> None:
        self._max_bytes = max_bytes
        self._sent: list[bytes] = []
        self.sent_bytes = 0

    def keep(self, events: bytes, /) -> None:
        """These went to the client, as the engine sent them."""
        self._sent.append(events)
        self.sent_bytes += len(events)

    def take(self) -> bytes:
        """All of them, in order; none is left."""
        sent, self._sent, self.sent_bytes = self._sent, [], 0
        return b"".join(sent)

    def all(self) -> bytes:
        """All of them, in order."""
        return b"".join(self._sent)

    def last(self) -> bytes:
        """Those that were kept last."""
        return self._sent[-1] if self._sent else b""

    def logged(self, events: bytes) -> bytes:
        """What the client gets of one event with the ids of one choice; empty where it is not that, and then nothing
        is logged."""
        if not events.startswith(b": ids "):
            return b""
        end = events.find(b"\n")
        if events[6:end].strip(b"0123456789 ,"):
            return b""
        event = events[end + 1 :]
        if event[:1] in (b":", b"\n") or b"\n:" in event or event.find(b"\n\n") != len(event) - 2:
            return b""
        if self.sent_bytes + len(events) > self._max_bytes:
            return b""
        self.keep(events)
        return event


class ChunkPath:
    """The way of nearly every token: one whole chunk of whole events goes to the client as it came.

    owner: whose ``data_arrived`` gets all else
    direct, between_chunks: both must be true for that; write: what takes the chunk, None where nothing does
    itl: where the time since ``last_s`` (of the monotonic clock) is counted; quiet: set to 0 by all that comes
    num_events, bytes_out: these chunks, and the bytes of body in them; both are counted up, the owner sets them
    journal: a TokenLog, which then sees each of them and takes what is ours off it; anything else stops them all
    """

    __slots__ = (
        "between_chunks", "bytes_out", "direct", "itl", "journal", "last_s", "num_events", "owner", "quiet",
        "write",
    )  # fmt: skip

    owner: Any
    direct: bool
    between_chunks: bool
    write: Callable[[bytes], object] | None
    itl: Histogram | None
    last_s: float
    quiet: int
    num_events: int
    bytes_out: int
    journal: object

    def __new__(cls, owner: Any, /) -> Self:
        self = super().__new__(cls)
        self.owner = owner
        self.last_s = 0.0
        self.reset()
        return self

    def reset(self) -> None:
        """Before a request: as it was made, but for the owner and ``last_s``."""
        self.direct = self.between_chunks = False
        self.write = self.itl = self.journal = None
        self.quiet = self.num_events = self.bytes_out = 0

    def data_received(self, data: bytes, /) -> None:
        self.quiet = 0
        write = self.write
        if self.direct and self.between_chunks and write is not None:
            size = size_of_whole_chunk(data)
            journal = self.journal
            if size and journal is not None:
                event = journal.logged(data[-2 - size : -2]) if isinstance(journal, TokenLog) else b""
                size = len(event)
                data = b"%x\r\n%b\r\n" % (size, event) if event else data
            if size:
                now_s = time.monotonic()
                gap_s = now_s - self.last_s
                self.last_s = now_s
                self.num_events += 1
                self.bytes_out += size
                if self.itl is not None:
                    self.itl.observe(gap_s)
                write(data)
                return
        self.owner.data_arrived(data)


def size_of_whole_chunk(data: bytes) -> int:
    """Body bytes of the one chunk that ``data`` is, if it is one of whole events without usage; else 0.

    An event that ends with the list of choices (as vLLM's do) is known at a glance to hold no usage after it.
    """
    at = 3 if data[3:4] == b"\r" else data.find(b"\r", 0, 6)
    size = _SIZES.get(data[: at + 2])
    if size is None or len(data) != at + size + 4:
        return 0
    if data.endswith(_CHOICES_END) or (data.endswith(_EVENT_END) and b'"usage"' not in data):
        return size
    return 0
