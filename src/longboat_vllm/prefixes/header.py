"""The header by which a gateway names the blocks of a request's prompt: ``TAG.DEPTH.BASE64``.

TAG: up to 16 hexadecimal digits, which the engine repeats when it tells what it found cached; DEPTH: how many leading
blocks the gateway expects to be cached; BASE64: the names of the blocks (8 bytes each), then their ends (4 bytes each),
all little-endian.
"""

from __future__ import annotations

import binascii
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ("PREFIX_HEADER", "NamedPrompt", "read_prefix_header")

PREFIX_HEADER = b"x-longboat-prefix"
_NAME_BYTES, _END_BYTES = 8, 4
_MAX_TAG_DIGITS = 16


@dataclass(frozen=True)
class NamedPrompt:
    """The blocks of one request's prompt."""

    tag: int
    expected: int  # leading blocks that the gateway expects to be cached
    names: tuple[bytes, ...]
    ends: Sequence[int]  # where each block ends, in any unit that grows with the tokens


def read_prefix_header(value: bytes) -> NamedPrompt:
    """Raise ValueError where the header is not as above."""
    tag, _, rest = value.partition(b".")
    depth, _, encoded = rest.partition(b".")
    if not 0 < len(tag) <= _MAX_TAG_DIGITS:
        raise ValueError(f"the tag has {len(tag)} digits; it may have 1 to {_MAX_TAG_DIGITS}")
    if int(depth) < 0:
        raise ValueError("the depth is below 0")
    data = binascii.a2b_base64(encoded)
    num, left = divmod(len(data), _NAME_BYTES + _END_BYTES)
    if left:
        raise ValueError(f"the names and ends are {len(data)} bytes, not 12 for each block")
    ends = array("I", data[num * _NAME_BYTES :])
    if sys.byteorder == "big":
        ends.byteswap()
    if any(after < before for before, after in pairwise(ends)):
        raise ValueError("the ends of the blocks do not grow")
    names = tuple(data[at : at + _NAME_BYTES] for at in range(0, num * _NAME_BYTES, _NAME_BYTES))
    return NamedPrompt(int(tag, 16), min(int(depth), num), names, ends)
