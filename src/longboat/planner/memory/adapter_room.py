"""Bytes of the room for LoRA adapters: an engine makes all of it before its first request, for every matrix it knows.

An adapter of rank r adds to a matrix of n inputs and m outputs two matrices of r x n and m x r. Source: vLLM 0.32,
``create_lora_weights`` of its layers: the half that tensor parallelism does not cut is held whole by each rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.catalog.shape.weight import VOCAB_PADDING, Weight
from longboat.core.plan import AdapterRoom
from longboat.planner.memory.split_shape import Split
from longboat.planner.memory.stage_weights import stage_ranges

__all__ = ("adapter_bytes", "adapter_parts")

ADAPTED = ("attention", "mlp", "experts", "shared_experts", "mixer")
"""Parts of a layer whose matrices engines let adapters change."""


def adapter_bytes(
    shape: ModelShape, split: Split, room: AdapterRoom, *, number_bytes: int, in_host: bool
) -> tuple[int, ...]:
    """Return the bytes of each stage's fullest rank.

    in_host: the rank computes in its host's memory, which also keeps the adapters that are held
    """
    layers, end = adapter_parts(shape, split, room, number_bytes=number_bytes, in_host=in_host)
    each = [sum(layers[id(shape.layers[index])] for index in stage) for stage in stage_ranges(split)]
    each[0] += end
    each[-1] += end
    return tuple(each)


def adapter_parts(
    shape: ModelShape, split: Split, room: AdapterRoom, *, number_bytes: int, in_host: bool
) -> tuple[Mapping[int, int], int]:
    """Return the bytes of one rank for each sort of layer, by its ``id``, and for the vocabulary at either end."""
    taken = (room.slots + (room.held if in_host else 0)) * room.rank * number_bytes
    return {id(layer): taken * _layer(layer, split) for layer in shape.kinds}, taken * _vocabulary(shape, split)


def _layer(layer: Layer, split: Split) -> int:
    """Return inputs and outputs of all its matrices, as far as one rank holds them."""
    return sum(_matrix(weight, split) for weight in layer.weights if weight.part in ADAPTED)


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
