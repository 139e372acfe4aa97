"""Writes random weights as a safetensors file, piece by piece, with the standard library alone.

Format: https://huggingface.co/docs/safetensors (8 bytes of header length, a JSON header, then the raw numbers).
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

__all__ = ("DEVIATION", "Tensor", "data_bytes", "matrix", "vectors", "write_random_weights")

Tensor = tuple[str, tuple[int, ...]]

BYTES_PER_WEIGHT = 2
_CHUNK_WEIGHTS = 1 << 20
DEVIATION = 0.02
"""Standard deviation of the weights where a model asks for no other."""
_ONE = (0x3F80).to_bytes(2, "little")
"""1.0 as bfloat16: the scales of the norms."""
_ZERO = bytes(2)


def data_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all weights in bfloat16, without the header."""
    return sum(math.prod(shape) for _, shape in tensors) * BYTES_PER_WEIGHT


def matrix(name: str, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return a linear layer's weight and bias."""
    return (f"{name}.weight", (rows, columns)), (f"{name}.bias", (rows,))


def vectors(name: str, numbers: int) -> tuple[Tensor, Tensor]:
    """Return a norm's weight and bias."""
    return (f"{name}.weight", (numbers,)), (f"{name}.bias", (numbers,))


def write_random_weights(path: Path, tensors: Iterable[Tensor], seed: int, *, deviation: float = DEVIATION) -> None:
    """Write ``tensors`` in bfloat16; the bytes depend on names, shapes, ``seed`` and ``deviation`` only.

    Matrices are random, biases 0, and other vectors 1.
    """
    tensors = list(tensors)
    low, high = _table(deviation)
    with path.open("wb") as file:
        file.write(_header(tensors))
        for name, shape in tensors:
            for chunk in _weights(name, shape, seed, low, high):
                file.write(chunk)


def _header(tensors: Iterable[Tensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors:
        start, end = end, end + math.prod(shape) * BYTES_PER_WEIGHT
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _weights(name: str, shape: tuple[int, ...], seed: int, low: bytes, high: bytes) -> Iterator[bytes]:
    if len(shape) == 1:
        yield (_ZERO if name.endswith("bias") else _ONE) * shape[0]
        return
    rng = random.Random(f"{seed}:{name}")
    left = math.prod(shape)
    while left:
        count = min(left, _CHUNK_WEIGHTS)
        yield _spread(rng.randbytes(count), low, high)
        left -= count


def _spread(raw: bytes, low: bytes, high: bytes) -> bytes:
    """Map each random byte to one of 256 evenly spaced bfloat16 numbers: two table look-ups, in C."""
    weights = bytearray(2 * len(raw))
    weights[0::2] = raw.translate(low)
    weights[1::2] = raw.translate(high)
    return bytes(weights)


def _bfloat16(value: float) -> int:
    """Return the upper half of a float32, rounded to nearest even."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@cache
def _table(deviation: float) -> tuple[bytes, bytes]:
    """Return low and high bytes of a uniform distribution over ±√3 σ, whose standard deviation is σ."""
    reach = math.sqrt(3) * deviation
    numbers = [_bfloat16(((byte + 0.5) / 128 - 1) * reach) for byte in range(256)]
    return bytes(number & 0xFF for number in numbers), bytes(number >> 8 for number in numbers)
