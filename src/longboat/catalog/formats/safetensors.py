"""Reads headers of safetensors files: names, shapes and exact bytes, without the numbers.

Format: https://huggingface.co/docs/safetensors (8 bytes of header length, a JSON header, then the raw numbers).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

from longboat.catalog.shape.tensors import Tensor
from longboat.core.errors import UserInputError

__all__ = ("LENGTH_BYTES", "header_length", "read_header", "read_index")

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
MAX_COUNT = (1 << 64) - 1  # of the format


def header_length(start: bytes, origin: str) -> int:
    """Return the length of the JSON header, from the first eight bytes of a file.

    Raises UserInputError where they are not a length.
    """
    if len(start) < LENGTH_BYTES:
        raise _broken(origin, "is shorter than a header")
    length = int(struct.unpack("<Q", start[:LENGTH_BYTES])[0])
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise _broken(origin, f"declares a header of {length} bytes; the limit is {MAX_HEADER_BYTES}")
    return length


def read_header(text: bytes, origin: str) -> tuple[Tensor, ...]:
    """Return the tensors in the JSON header of a file. Raises UserInputError where it is malformed."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken(origin, f"has a header that is not JSON ({error})") from None
    if not isinstance(told, dict):
        raise _broken(origin, "has a header that is not a JSON object")
    return tuple(_tensor(name, entry, origin) for name, entry in told.items() if name != "__metadata__")


def _tensor(name: str, entry: object, origin: str) -> Tensor:
    if isinstance(entry, Mapping):
        shape, offsets = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
        if shape is not None and offsets is not None and len(offsets) == 2 and offsets[0] <= offsets[1]:
            dtype = str(entry.get("dtype", ""))
            return Tensor(name=name, shape=shape, num_bytes=offsets[1] - offsets[0], dtype=dtype)
    raise _broken(origin, f"has no shape or offsets for {name!r}")


def _counts(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    counts = tuple(item for item in value if isinstance(item, int) and 0 <= item <= MAX_COUNT)
    return counts if len(counts) == len(value) else None


def read_index(text: str, origin: str) -> tuple[str, ...]:
    """Return the names of the files that model.safetensors.index.json lists. Raises UserInputError."""
    try:
        told = json.loads(text)
        return tuple(sorted({_file_name(name) for name in told["weight_map"].values()}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _broken(origin, "is not an index of safetensors files") from None


def _file_name(name: object) -> str:
    """Check a file name within the model's folder. Raises ValueError for any other name."""
    if not isinstance(name, str) or ".." in name or name.startswith("/"):
        raise ValueError(name)
    return name


def _broken(origin: str, what: str) -> UserInputError:
    return UserInputError(f"{origin} {what}", hint="is the model's download complete?")
