"""Bytes of the room for LoRA adapters: an engine makes all of it before its first request, for every matrix it knows.

An adapter of rank r adds to a matrix of n inputs and m outputs two matrices of r x n and m x r. Source: vLLM 0.32,
``create_lora_weights`` of its layers: the half that tensor parallelism does not cut is held whole by each rank.
"""

from __future__ import annotations

from collections.abc import Iterable

from longboat.catalog.shape.model_shape import ModelShape
from longboat.catalog.shape.weight import VOCAB_PADDING, Weight
from longboat.core.plan import AdapterRoom
from longboat.planner.memory.split_shape import Split
from longboat.planner.memory.stage_weights import stage_ranges

__all__ = ("adapter_bytes",)

ADAPTED = ("attention", "mlp", "experts", "shared_experts", "mixer")
"""Parts of a layer whose matrices engines let adapters change."""


def adapter_bytes(
    shape: ModelShape, split: Split, room: AdapterRoom, *, number_bytes: int, in_host: bool
) -> tuple[int, ...]:
    """Return the bytes of each stage's fullest rank.

    in_host: the rank computes in its host's memory, which also keeps the adapters that are held
    """
    copies = room.slots + (room.held if in_host else 0)
    each = [_layers(shape, split, stage) for stage in stage_ranges(split)]
    each[0] += _vocabulary(shape, split)
    each[-1] += _vocabulary(shape, split)
    return tuple(copies * room.rank * number_bytes * numbers for numbers in each)


def _layers(shape: ModelShape, split: Split, layers: Iterable[int]) -> int:
    """Return inputs and outputs of all matrices, as far as one rank holds them."""
    known: dict[int, int] = {}
    total = 0
    for index in layers:
        layer = shape.layers[index]
        if id(layer) not in known:
            known[id(layer)] = sum(_matrix(weight, split) for weight in layer.weights if weight.part in ADAPTED)
        total += known[id(layer)]
    return total


def _matrix(weight: Weight, split: Split) -> int:
    if weight.columns == 1:
        return 0
    count = -(-weight.count // split.expert) if weight.part == "experts" else weight.count
    rows = -(-weight.rows // split.cut) if weight.shard in ("out", "kv_heads") else weight.rows
    columns = -(-weight.columns // split.cut) if weight.shard == "in" else weight.columns
    return count * (rows + columns)


def _vocabulary(shape: ModelShape, split: Split) -> int:
    padded = -(-shape.vocab_size // VOCAB_PADDING) * VOCAB_PADDING
    return -(-padded // split.cut) + shape.hidden_size
