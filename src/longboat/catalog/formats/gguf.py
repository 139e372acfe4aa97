"""Reads the header of a GGUF file: metadata and tensors, without the numbers.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from longboat.catalog.formats.gguf_types import GGUF_TYPES
from longboat.catalog.shape.tensors import Tensor
from longboat.core.errors import UserInputError

__all__ = ("GgufHeader", "MoreBytesError", "parse_gguf")

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MAX_TENSORS = 1_000_000
# Longer arrays (vocabularies) are skipped; only their length is kept.
MAX_KEPT_ITEMS = 4096

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]


class MoreBytesError(Exception):
    """The header is longer than the given data; reading needs ``at_least`` bytes."""

    def __init__(self, at_least: int) -> None:
        super().__init__(at_least)
        self.at_least = at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The part of the file before the numbers."""

    metadata: dict[str, Value]
    lengths: dict[str, int]  # items of each array, kept or skipped
    tensors: tuple[Tensor, ...]


def parse_gguf(data: bytes, origin: str) -> GgufHeader:
    """Parse the header at the start of ``data``.

    Raises MoreBytesError where it continues behind ``data``, UserInputError where it is not a GGUF header.
    """
    cursor = _Cursor(data)
    if (magic := cursor.take(4)) != MAGIC:
        raise _broken(origin, f"begins with {magic!r} instead of GGUF")
    version = cursor.number("I")
    if version not in VERSIONS:
        raise _broken(origin, f"is GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are supported")
    num_tensors, num_pairs = cursor.number("Q"), cursor.number("Q")
    if num_tensors > MAX_TENSORS or num_pairs > MAX_TENSORS:
        raise _broken(
            origin, f"declares {num_tensors} tensors and {num_pairs} pairs of metadata; the limit is {MAX_TENSORS}"
        )
    metadata: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for _ in range(num_pairs):
        key = cursor.text()
        metadata[key], lengths[key] = _value(cursor, origin)
    tensors = tuple(_tensor(cursor, origin) for _ in range(num_tensors))
    return GgufHeader(metadata=metadata, lengths=lengths, tensors=tensors)


class _Cursor:
    """A position in the data that moves with each read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise MoreBytesError(end)
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise MoreBytesError(self.at)

    def number(self, code: str) -> int:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return int(value)

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def skip_texts(self, count: int) -> None:
        """Skip ``count`` strings; a vocabulary has hundreds of thousands."""
        data, at, end, unpack = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end:
                raise MoreBytesError(at + 8)
            at += 8 + unpack(data, at)[0]
        self.at = at
        self.skip(0)


def _value(cursor: _Cursor, origin: str) -> tuple[Value, int]:
    kind = cursor.number("I")
    if kind == ARRAY:
        return _array(cursor, origin)
    return _scalar(cursor, kind, origin), 1


def _scalar(cursor: _Cursor, kind: int, origin: str) -> Scalar:
    if kind == STRING:
        return cursor.text()
    if kind not in SCALARS:
        raise _broken(origin, f"has metadata of the unknown type {kind}")
    code = SCALARS[kind]
    value: Scalar = struct.unpack(f"<{code}", cursor.take(struct.calcsize(f"<{code}")))[0]
    return value


def _array(cursor: _Cursor, origin: str) -> tuple[Value, int]:
    kind, count = cursor.number("I"), cursor.number("Q")
    if kind != STRING and kind not in SCALARS:
        raise _broken(origin, f"has an array of the unknown type {kind}")
    if count <= MAX_KEPT_ITEMS:
        return tuple(_scalar(cursor, kind, origin) for _ in range(count)), count
    if kind == STRING:
        cursor.skip_texts(count)
    else:
        cursor.skip(count * struct.calcsize(f"<{SCALARS[kind]}"))
    return (), count


def _tensor(cursor: _Cursor, origin: str) -> Tensor:
    name, num_dimensions = cursor.text(), cursor.number("I")
    if num_dimensions > 8:
        raise _broken(origin, f"has a tensor {name!r} of {num_dimensions} dimensions")
    dimensions = tuple(cursor.number("Q") for _ in range(num_dimensions))
    kind = cursor.number("I")
    cursor.skip(8)
    if kind not in GGUF_TYPES:
        raise _broken(origin, f"has a tensor {name!r} of the unknown type {kind}")
    form = GGUF_TYPES[kind]
    # The file lists the innermost dimension first; each row is a whole number of blocks.
    rows = math.prod(dimensions[1:])
    num_bytes = rows * -(-(dimensions[0] if dimensions else 1) // form.block) * form.num_bytes
    return Tensor(name=name, shape=dimensions[::-1], num_bytes=num_bytes, dtype=form.name)


def _broken(origin: str, what: str) -> UserInputError:
    return UserInputError(f"{origin} {what}", hint="is it a GGUF file, and is its download complete?")
