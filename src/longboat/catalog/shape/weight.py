"""One weight of a model: its purpose, its size as stored, and how engines divide it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ("VOCAB_PADDING", "Part", "Shard", "Weight")

Part = Literal[
    "attention", "mlp", "experts", "shared_experts", "router", "norm", "embedding", "head", "vision", "mtp", "mixer",
    "other",
]  # fmt: skip
Shard = Literal["out", "in", "kv_heads", "vocab", "replicated"]

# vLLM and SGLang pad the vocabulary to a multiple of this before they divide it.
VOCAB_PADDING = 64


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A matrix, or ``count`` equal ones (one per expert); a vector has one column."""

    name: str
    part: Part
    rows: int  # outputs of one copy
    columns: int = 1  # inputs of one copy
    count: int = 1  # copies; more than 1 for experts only, and expert parallelism divides the copies
    bits: float = 16.0  # stored bits per number on average, scales and zero points included
    group: int = 0  # numbers along ``columns`` that share one scale; 0: a shard may be cut anywhere
    row_group: int = 0  # rows that share one scale (128 in FP8 blocks); 0: a shard may be cut anywhere
    # what tensor parallelism cuts. out: rows; in: columns; kv_heads: rows by key and value heads, which are copied
    # where there are fewer than ranks; vocab: rows, padded; replicated: each rank holds all of it
    shard: Shard = "replicated"
    units: int = 0  # indivisible pieces of the dimension that is cut (attention heads); 0: there are none

    @property
    def num_params(self) -> int:
        """Numbers in all copies."""
        return self.rows * self.columns * self.count

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies as stored."""
        return round(self.num_params * self.bits / 8)

    def rank_params(self, *, tensor: int = 1, expert: int = 1) -> int:
        """Return the numbers that the fullest rank holds, of all copies.

        tensor: ranks that divide it by tensor parallelism; expert: ranks that divide the copies, 1: no expert
        parallelism. Experts that are divided by copies are not cut otherwise.
        """
        if self.part == "experts" and expert > 1:
            return self.rows * self.columns * _ceil(self.count, expert)
        match self.shard:
            case "out":
                return _ceil(self.rows, tensor) * self.columns * self.count
            case "in":
                return self.rows * _ceil(self.columns, tensor) * self.count
            case "kv_heads":
                return _ceil(self.rows, min(tensor, self.units or tensor)) * self.columns * self.count
            case "vocab":
                padded = _ceil(self.rows, VOCAB_PADDING) * VOCAB_PADDING
                return _ceil(padded, tensor) * self.columns if tensor > 1 else self.num_params
            case _:
                return self.num_params

    def rank_bytes(self, *, tensor: int = 1, expert: int = 1) -> int:
        """Return the bytes that the fullest rank holds; arguments as in ``rank_params``."""
        return round(self.rank_params(tensor=tensor, expert=expert) * self.bits / 8)


def _ceil(total: int, parts: int) -> int:
    return -(-total // parts)
