"""How many tokens and sequences fit into the bytes that are left for caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from longboat.catalog.shape.cache import Cache
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.memory.split_shape import Split
from longboat.planner.memory.stage_weights import stage_ranges

__all__ = ("StageCaches", "max_context", "sequence_bytes", "stage_caches")

# Nothing longer is asked for; it bounds the search where no cache grows with the context.
MAX_CONTEXT_TOKENS = 1 << 27
# llama.cpp rounds caches with a window up to a multiple of this (its ``llama-kv-cache-iswa.cpp``).
WINDOW_PADDING = 256


@dataclass(frozen=True)
class StageCaches:
    """The caches of one rank of a stage: how often each kind occurs, and into how many parts it is divided."""

    kinds: tuple[tuple[Cache, int, int], ...]
    kv_bytes: float
    batch_tokens: int = 0  # as in ``sequence_bytes``
    states: int = 1  # as in ``sequence_bytes``
    in_flight_tokens: int = 0  # of steps under way, which layers with a window keep beside their windows

    def in_flight_bytes(self, context_tokens: int) -> int:
        """Return bytes that tokens under way take besides on a rank of this stage, all in one sequence at worst."""
        found = 0
        for cache, count, parts in self.kinds if self.in_flight_tokens else ():
            if cache.kind == "window":
                kept = min(context_tokens, cache.window_tokens - 1 + self.in_flight_tokens)
                more = max(0, kept - min(context_tokens, cache.window_tokens))
                found += -(-count * round(more * cache.entry_bytes(self.kv_bytes)) // parts)
        return found

    def bytes_of(self, context_tokens: int) -> int:
        """Return bytes that one sequence takes on a rank of this stage."""
        return sum(
            -(-count * sequence_bytes(cache, context_tokens, self.kv_bytes, self.batch_tokens, self.states) // parts)
            for cache, count, parts in self.kinds
        )

    def bytes_per_token(self) -> float:
        """Return bytes of each further token of a long sequence."""
        return sum((count * cache.bytes_per_token(self.kv_bytes) / parts for cache, count, parts in self.kinds), 0.0)

    def num_blocks(self, room_bytes: int, block_tokens: int) -> int | None:
        """Return blocks of ``block_tokens`` that vLLM makes of ``room_bytes`` where all layers cache alike, else None.

        Source: ``vllm/v1/core/kv_cache_utils.py``: bytes // bytes of a layer's block // layers.
        """
        if len(self.kinds) != 1 or self.kinds[0][0].kind not in ("full", "latent"):
            return None
        cache, count, parts = self.kinds[0]
        page = round(block_tokens * cache.entry_bytes(self.kv_bytes) / parts)
        return room_bytes // page // count


def sequence_bytes(cache: Cache, context_tokens: int, kv_bytes: float, batch_tokens: int, states: int = 1) -> int:
    """Return bytes of one sequence in a layer.

    batch_tokens: of a step, for which the engine keeps room in the cache of each sequence beside the window; 0: none
    states: copies of a state of fixed size that the engine keeps for a sequence
    """
    if cache.kind == "state":
        return states * cache.bytes_of(context_tokens, kv_bytes)
    if cache.kind != "window" or not batch_tokens:
        return cache.bytes_of(context_tokens, kv_bytes)
    kept = min(context_tokens, cache.window_tokens + batch_tokens)
    padded = -(-kept // WINDOW_PADDING) * WINDOW_PADDING
    return round(padded * cache.entry_bytes(kv_bytes)) + cache.state_bytes


def stage_caches(
    shape: ModelShape,
    split: Split,
    kv_bytes: float,
    batch_tokens: int = 0,
    *,
    states: int = 1,
    in_flight_tokens: int = 0,
) -> tuple[StageCaches, ...]:
    """Return the caches of each stage. The numbers are those of ``StageCaches``."""
    told = kv_bytes, batch_tokens, states, in_flight_tokens

    def count(layers: range) -> StageCaches:
        counts: dict[Cache, int] = {}
        for layer, times in shape.counted_layers(layers.start, layers.stop):
            if layer.cache.kind != "none":
                counts[layer.cache] = counts.get(layer.cache, 0) + times
        kinds = tuple((cache, times, cache.tensor_shards(split.cut)) for cache, times in counts.items())
        return StageCaches(kinds, *told)

    return tuple(
        shape.once(("caches", layers.start, layers.stop, split.cut, *told), partial(count, layers))
        for layers in stage_ranges(split)
    )


def max_context(caches: Sequence[StageCaches], rooms: Sequence[int], num_sequences: int, at_most: int = 0) -> int:
    """Return the longest context that ``num_sequences`` can have at once; 0 where not even one token fits.

    rooms: bytes for caches on the ranks, as ``caches``; at_most: the model's own limit, 0 for none
    """
    low, high = 0, at_most or MAX_CONTEXT_TOKENS
    tightest: dict[tuple[tuple[Cache, int, int], ...], int] = {}
    by_kinds = {one.kinds: one for one in caches}
    for one, room in zip(caches, rooms, strict=True):
        tightest[one.kinds] = min(room, tightest.get(one.kinds, room))
    pairs = [(by_kinds[kinds], room) for kinds, room in tightest.items()]
    while low < high:
        middle = (low + high + 1) // 2
        if all(num_sequences * one.bytes_of(middle) + one.in_flight_bytes(middle) <= room for one, room in pairs):
            low = middle
        else:
            high = middle - 1
    return low
