"""vLLM on a processor, as Longboat starts it: numbers of 32 bits, and what a rank takes beside weights and cache.
SGLang is started so too, and counted alike.

Measured on 2026-11-22 with vLLM 0.32.0 (CPU) on two cores of an EPYC 7003 (docs/benchmarks/planner.md): the
proportional set size that a replica adds to that of its zygote, after its whole cache was used once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from longboat.catalog.quantization.requantize import widened
from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.split_shape import Card, Load, Split

__all__ = ("LIBRARIES", "computed_load", "computed_shape", "is_wide", "packed_bytes", "processor_overhead")

MIB = 1024**2
NUMBER_BITS, NUMBER_BYTES = 32, 4
LIBRARIES = "libraries"
"""The part that all replicas of a node share with its zygote: what they have imported."""
LIBRARY_BYTES = 600 * MIB
# Server and engine core, what the allocator keeps, scratch memory of kernels: 70 to 105 MiB were seen after some
# requests of few different lengths. Each length of a prompt adds kernels of its own, up to about 140 MiB more.
PROCESS_BYTES = 85 * MIB
BATCHED_TOKENS = 2048


def is_wide(card: Card, load: Load) -> bool:
    """Return whether the engine computes with 32 bits on this card, as it does unless a setting says otherwise."""
    return card.kind == "cpu" and engine_traits(load.engine).wide_on_processors and load.weight_bits in (0, NUMBER_BITS)


def computed_shape(card: Card, load: Load, shape: ModelShape) -> ModelShape:
    """Return the model as the engine holds it there."""
    return widened(shape) if is_wide(card, load) else shape


def computed_load(card: Card, load: Load) -> Load:
    """Return the load with the cache's numbers as wide as the model's, unless a setting narrows them."""
    return replace(load, kv_bits=NUMBER_BITS) if is_wide(card, load) and load.kv_bits == 16 else load


def processor_overhead(shape: ModelShape, split: Split, load: Load) -> Mapping[str, int]:
    """Return bytes by part that one rank takes beside weights and cache."""
    return {
        "activations": _activation_bytes(shape, split, load),
        "tables": _table_bytes(shape),
        "processes": PROCESS_BYTES,
        LIBRARIES: LIBRARY_BYTES,
    }


def packed_bytes(weights: Mapping[str, int]) -> int:
    """Return copies of embedding and head, packed for multiplication: other matrices are kept only packed.

    weights: of one rank by part. Source: ``dispatch_cpu_unquantized_gemm`` of vLLM, with ``remove_weight=False``.
    """
    return weights.get("embedding", 0) + weights.get("head", 0)


def _activation_bytes(shape: ModelShape, split: Split, load: Load) -> int:
    """Return the largest step: hidden state and residual, gate and up projection together, and their product."""
    tokens = min(load.batched_tokens or BATCHED_TOKENS, load.context_tokens * load.num_sequences)
    inner = max((_inner(layer) for layer in shape.kinds), default=0)
    return NUMBER_BYTES * tokens * (2 * shape.hidden_size + 3 * inner // split.tensor)


def _inner(layer: Layer) -> int:
    """Return rows of the widest projection of the feed-forward part."""
    return max((weight.rows for weight in layer.weights if weight.part == "mlp" and weight.shard == "out"), default=0)


def _table_bytes(shape: ModelShape) -> int:
    """Return cosines and sines of every position, for a head."""
    width = max((layer.query_dim for layer in shape.kinds), default=0)
    return NUMBER_BYTES * shape.max_context_tokens * width
