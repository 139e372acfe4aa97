"""What a layer keeps of earlier tokens: keys and values, a latent, a window, or a state of fixed size.

Formulas: keys and values 2 x heads x width; latent attention (DeepSeek-V2, section 2.1.2); gated delta rule and Mamba-2
states as vLLM 0.32 allocates them; compressed caches as DeepSeek-V4's reference code keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ("NO_CACHE", "Cache", "CacheKind")

CacheKind = Literal["full", "window", "latent", "state", "compressed", "none"]

# An indexer's key takes 8 bits per number, with a 4-byte scale for each 128 numbers.
INDEX_SCALE_BYTES = 4
INDEX_SCALE_GROUP = 128


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The cache of one layer, for one sequence.

    kind: full (every token), window (the last ``window_tokens``), latent (one vector a token, for all heads), state (of
    fixed size), compressed (a window, and one vector for each ``ratio`` tokens), none
    """

    kind: CacheKind
    num_kv_heads: int = 0
    key_dim: int = 0  # numbers in a key of one head
    value_dim: int = 0  # numbers in a value of one head
    window_tokens: int = 0  # of window and compressed
    latent_dim: int = 0  # numbers of the vector, rotary part included; of latent and compressed
    state_bytes: int = 0  # kept once per sequence; of compressed too (its decode buffers)
    num_state_heads: int = 0  # heads by which tensor parallelism divides the state; 0: the state is replicated
    index_dim: int = 0  # numbers of the key that a sparse-attention indexer keeps with each entry; 0: no indexer
    num_index_heads: int = 0  # heads of the indexer
    top_k_tokens: int = 0  # most entries that attention reads after the indexer chose; 0: all
    ratio: int = 0  # tokens in one compressed entry; 0: the layer has a window only

    @property
    def index_bytes(self) -> int:
        """Bytes of one indexer key."""
        return self.index_dim + INDEX_SCALE_BYTES * (-(-self.index_dim // INDEX_SCALE_GROUP))

    def entry_bytes(self, dtype_bytes: float) -> float:
        """Return the bytes of one entry (a token, or a compressed group of them), indexer key included.

        dtype_bytes: 2 for bf16 and fp16, 1 for fp8
        """
        match self.kind:
            case "full" | "window":
                return self.num_kv_heads * (self.key_dim + self.value_dim) * dtype_bytes + self.index_bytes
            case "latent" | "compressed":
                return self.latent_dim * dtype_bytes + self.index_bytes
            case _:
                return 0.0

    def bytes_per_token(self, dtype_bytes: float) -> float:
        """Return the bytes that each further token of a long sequence adds; 0 where the cache stops growing."""
        match self.kind:
            case "full" | "latent":
                return self.entry_bytes(dtype_bytes)
            case "compressed" if self.ratio:
                return self.entry_bytes(dtype_bytes) / self.ratio
            case _:
                return 0.0

    def fixed_bytes(self, dtype_bytes: float) -> int:
        """Return the bytes of a long sequence that do not grow with it: a full window, a state."""
        match self.kind:
            case "window":
                return round(self.window_tokens * self.entry_bytes(dtype_bytes)) + self.state_bytes
            case "compressed":
                return round(self.window_tokens * self.latent_dim * dtype_bytes) + self.state_bytes
            case _:
                return self.state_bytes

    def bytes_of(self, context_tokens: int, dtype_bytes: float) -> int:
        """Return the bytes of one sequence of ``context_tokens``."""
        match self.kind:
            case "full" | "latent":
                return round(context_tokens * self.entry_bytes(dtype_bytes)) + self.state_bytes
            case "window":
                kept = min(context_tokens, self.window_tokens)
                return round(kept * self.entry_bytes(dtype_bytes)) + self.state_bytes
            case "compressed":
                window = min(context_tokens, self.window_tokens) * self.latent_dim * dtype_bytes
                entries = context_tokens // self.ratio if self.ratio else 0
                return round(window + entries * self.entry_bytes(dtype_bytes)) + self.state_bytes
            case _:
                return self.state_bytes

    def tensor_shards(self, tensor: int) -> int:
        """Return into how many parts ``tensor`` ranks divide the cache; the rest are copies.

        Keys and values are divided by heads, a latent not at all, a state by its heads.
        """
        match self.kind:
            case "full" | "window":
                return min(tensor, max(1, self.num_kv_heads))
            case "state":
                return min(tensor, max(1, self.num_state_heads))
            case _:
                return 1

    def attended_tokens(self, context_tokens: int) -> int:
        """Return the entries that one query reads at ``context_tokens``."""
        match self.kind:
            case "window":
                return min(context_tokens, self.window_tokens)
            case "compressed":
                entries = context_tokens // self.ratio if self.ratio else 0
                kept = min(entries, self.top_k_tokens) if self.top_k_tokens else entries
                return min(context_tokens, self.window_tokens) + kept
            case "full" | "latent":
                return min(context_tokens, self.top_k_tokens) if self.top_k_tokens else context_tokens
            case _:
                return 0


NO_CACHE = Cache(kind="none")
