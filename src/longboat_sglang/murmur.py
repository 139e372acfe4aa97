"""The hash by which SGLang draws seeded tokens, for CPUs: MurmurHash3 of (seed, position, column), 32 bits.

It gives the numbers of SGLang's Triton kernel (``sglang.kernels.ops.sampling.murmur_hash``), and so of CUDA.
"""

from __future__ import annotations

from typing import Any

__all__ = ("define", "murmur_hash32")

_MASK = 0xFFFFFFFF
_NUM_BYTES = 16  # of seed, position and column


def define() -> Any:
    """Define the operator that SGLang calls on CPUs; return the library, which must be kept."""
    import torch

    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    library.impl("murmur_hash32_cpu", murmur_hash32, "CPU")
    return library


def murmur_hash32(seed: Any, positions: Any, columns: Any) -> Any:
    """Return the hashes as a table of uint32: a row for each seed and position, a column for each of ``columns``."""
    import torch

    wide = torch.int64  # torch has no shifts of unsigned numbers
    seeds, places = (numbers.to(wide)[:, None] for numbers in (seed, positions))
    mixed = _mixed(torch.zeros_like(seeds), seeds & _MASK)
    mixed = _mixed(mixed, (seeds >> 32) & _MASK)
    mixed = _mixed(mixed, places & _MASK)
    mixed = _mixed(mixed, columns.to(wide)[None, :] & _MASK)
    return _finished(mixed ^ _NUM_BYTES).to(torch.uint32)


def _mixed(hashed: Any, block: Any) -> Any:
    block = (_rotated((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK
    return (_rotated(hashed ^ block, 13) * 5 + 0xE6546B64) & _MASK


def _rotated(numbers: Any, num_bits: int) -> Any:
    return ((numbers << num_bits) | (numbers >> (32 - num_bits))) & _MASK


def _finished(hashed: Any) -> Any:
    hashed = ((hashed ^ (hashed >> 16)) * 0x85EBCA6B) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * 0xC2B2AE35) & _MASK
    return hashed ^ (hashed >> 16)
