"""The frames of an engine's prefix feed, and the header that names a prompt's blocks to it: see the carry protocol."""

from __future__ import annotations

import binascii
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = (
    "FEED_PATH",
    "FOUND",
    "HELLO",
    "LOAD",
    "MAX_FRAME_BYTES",
    "MAX_NAMED_BLOCKS",
    "REMOVED",
    "RESET",
    "STORED",
    "BadFrameError",
    "FrameReader",
    "Load",
    "prefix_header",
    "read_found",
    "read_load",
)

FEED_PATH: Final = "/longboat/v1/prefixes"
HELLO, RESET, STORED, REMOVED, LOAD, FOUND = range(1, 7)
MAX_FRAME_BYTES: Final = 1 << 20
MAX_NAMED_BLOCKS: Final = 4000  # of one header, which keeps it below 64 KiB
_FRAME: Final = struct.Struct("<IBQ")
_LOAD: Final = struct.Struct("<IIqd")
_FOUND: Final = struct.Struct("<QIII")

Load = tuple[int, int, int, float]


class BadFrameError(ValueError):
    """Bytes of a feed that are not a frame."""


class FrameReader:
    """Cuts a feed's bytes, which come in any pieces, into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield kind, number and contents of the frames that ``data`` completes. Raise BadFrameError."""
        data = self._rest + data
        at = 0
        while len(data) - at >= _FRAME.size:
            size, kind, number = _FRAME.unpack_from(data, at)
            if size > MAX_FRAME_BYTES:
                raise BadFrameError(f"a frame of {size} bytes; the limit is {MAX_FRAME_BYTES}")
            end = at + _FRAME.size + size
            if end > len(data):
                break
            yield kind, number, data[at + _FRAME.size : end]
            at = end
        self._rest = data[at:]


def read_load(payload: bytes) -> Load:
    """Return running and waiting requests, queued prompt tokens (-1: unknown) and the used part of the KV cache."""
    if len(payload) != _LOAD.size:
        raise BadFrameError(f"a load of {len(payload)} bytes, not {_LOAD.size}")
    found: Load = _LOAD.unpack(payload)
    return found


def read_found(payload: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each request its tag, its prompt tokens, those that were cached, and those that were expected to be."""
    if len(payload) % _FOUND.size:
        raise BadFrameError(f"{len(payload)} bytes of requests, not {_FOUND.size} for each")
    yield from _FOUND.iter_unpack(payload)


def prefix_header(tag: int, depth: int, blocks: bytes, ends: Sequence[int]) -> bytes:
    """Return the header line that names a prompt's blocks to an engine with the plugin.

    tag: 64 bits that the engine repeats when it tells what the request found; depth: leading blocks that are expected
    to be cached there; ends: 32 bits each
    """
    num = len(ends)
    order = "<" if sys.byteorder == "big" else "="
    data = blocks[: 8 * num] + struct.pack(f"{order}{num}I", *ends[:num])
    return b"x-longboat-prefix: %x.%d.%b\r\n" % (tag, min(depth, num), binascii.b2a_base64(data, newline=False))
