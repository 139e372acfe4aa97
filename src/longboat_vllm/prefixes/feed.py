"""The feed to gateways: which named prefixes come and go, how busy the engine is, and what requests found cached.

``GET /longboat/v1/prefixes?epoch=E&from=SEQ`` answers with a stream of frames. A frame is ``<IBQ`` (bytes after these
13, kind, sequence number), then its contents:

- HELLO: JSON with ``epoch``, ``block_tokens`` and ``capacity_tokens``
- RESET: nothing of what was said before holds; STORED frames with all that is held follow
- STORED, REMOVED: names of 8 bytes each
- LOAD, ten times a second where something changed, else once: ``<IIqd``: running, waiting, prompt tokens to compute
  (-1: unknown), used part of the KV cache
- FOUND: ``<QIII`` for each request: its tag, prompt tokens, cached tokens, and the cached tokens that its gateway
  expected

Only what changes names is numbered: RESET, STORED, REMOVED. Of a snapshot, only the last frame is. A subscriber whose
number is still kept continues from there; any other one gets a snapshot. With ``names=0`` nothing numbered is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

__all__ = ("PATH", "PrefixFeed", "read_query")

PATH = "/longboat/v1/prefixes"
HELLO, RESET, STORED, REMOVED, LOAD, FOUND = range(1, 7)
_FRAME = struct.Struct("<IBQ")
_LOAD = struct.Struct("<IIqd")
_FOUND = struct.Struct("<QIII")
_NAMES_IN_FRAME = 8192
_KEPT_BYTES = 4 << 20
_EVERY_S = 0.1
_QUIET_S = 1.0

Load = tuple[int, int, int, float]


def read_query(query: bytes) -> tuple[str, int, bool]:
    """Return a subscription's epoch and sequence number, and whether it takes names."""
    fields = dict(part.partition("=")[::2] for part in query.decode("latin-1").split("&"))
    number = fields.get("from", "")
    return fields.get("epoch", ""), int(number) if number.isdecimal() else 0, fields.get("names") != "0"


class PrefixFeed:
    """The feed of one API server. Everything happens in its event loop."""

    def __init__(self, held: Callable[[], Iterable[bytes]], load: Callable[[], Load], hello: dict[str, int]) -> None:
        self._held = held
        self._load = load
        self._hello = hello
        self.epoch = os.urandom(8).hex()
        self._sequence = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._subscribers: set[_Subscriber] = set()

    def changed(self, stored: bool, names: Sequence[bytes]) -> None:
        """Tell that names are held now, or not any more."""
        for at in range(0, len(names), _NAMES_IN_FRAME):
            self._number(STORED if stored else REMOVED, b"".join(names[at : at + _NAMES_IN_FRAME]))

    def reset(self) -> None:
        """Tell that nothing of what was said before holds."""
        self._kept.clear()
        self._kept_bytes = 0
        self._number(RESET, b"")

    def found(self, tag: int, prompt_tokens: int, cached_tokens: int, expected_tokens: int) -> None:
        """Tell what a request found cached."""
        frame = _frame(FOUND, 0, _FOUND.pack(tag, prompt_tokens, cached_tokens, expected_tokens))
        for subscriber in self._subscribers:
            subscriber.add(frame)

    async def frames(self, epoch: str, after: int, names: bool = True) -> AsyncGenerator[bytes, None]:
        """Yield what one subscriber gets, until it goes away."""
        hello = json.dumps({"epoch": self.epoch, **self._hello}).encode()
        missed = self._missed(epoch, after) if names else ()
        subscriber = _Subscriber([_frame(HELLO, 0, hello), *missed], names)
        self._subscribers.add(subscriber)
        try:
            while True:
                if subscriber.is_behind:
                    subscriber.start(self._snapshot())
                if data := subscriber.take(self._load()):
                    yield data
                await subscriber.wait()
        finally:
            self._subscribers.discard(subscriber)

    def _number(self, kind: int, payload: bytes) -> None:
        self._sequence += 1
        frame = _frame(kind, self._sequence, payload)
        self._kept.append((self._sequence, frame))
        self._kept_bytes += len(frame)
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])
        for subscriber in self._subscribers:
            if subscriber.names:
                subscriber.add(frame)

    def _missed(self, epoch: str, after: int) -> Iterable[bytes]:
        first = self._kept[0][0] if self._kept else self._sequence + 1
        if epoch == self.epoch and first - 1 <= after <= self._sequence:
            return [frame for number, frame in self._kept if number > after]
        return self._snapshot()

    def _snapshot(self) -> list[bytes]:
        names = list(self._held())
        parts = range(0, len(names), _NAMES_IN_FRAME)
        stored = [_frame(STORED, 0, b"".join(names[at : at + _NAMES_IN_FRAME])) for at in parts]
        return [_frame(RESET, 0, b""), *stored, _frame(STORED, self._sequence, b"")]


class _Subscriber:
    """One gateway's subscription."""

    def __init__(self, first: list[bytes], names: bool) -> None:
        self.names = names  # whether it takes what is numbered
        self._news = asyncio.Event()
        self._load: Load | None = None
        self._quiet_s = 0.0
        self.start(first)

    def start(self, frames: list[bytes]) -> None:
        self._waiting = frames
        self._bytes = 0  # of the frames that came since
        self.is_behind = False  # it reads too slowly, and starts over

    def add(self, frame: bytes) -> None:
        if self._bytes < _KEPT_BYTES:
            self._waiting.append(frame)
            self._bytes += len(frame)
        else:
            self.is_behind = True
        self._news.set()

    def take(self, load: Load) -> bytes:
        """Return what waits, with the load where it is news or nothing was said for a while."""
        if load != self._load or self._quiet_s >= _QUIET_S:
            self._waiting.append(_frame(LOAD, 0, _LOAD.pack(*load)))
            self._load, self._quiet_s = load, 0.0
        data = b"".join(self._waiting)
        self._news.clear()
        self._waiting, self._bytes = [], 0
        return data

    async def wait(self) -> None:
        """Wait for news, a tenth of a second at most; what comes within a moment goes together."""
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), _EVERY_S)
            await asyncio.sleep(_EVERY_S / 20)
        self._quiet_s += _EVERY_S


def _frame(kind: int, number: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), kind, number) + payload
