"""Checks whether the weights of a model can be divided as a split asks: heads, widths, groups of quantized numbers.

Rules as vLLM 0.32's layers check them when they are made; SGLang's are the same. llama.cpp divides by layers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.catalog.shape.weight import Weight

__all__ = (
    "Obstacle",
    "find_obstacle",
    "head_obstacle",
    "nearest_degrees",
    "tensor_degrees",
    "vocab_obstacle",
    "working_degrees",
)

MAX_DEGREE = 64
# vLLM pads the vocabulary to a multiple of this before it divides it (vocab_parallel_embedding.py).
VOCAB_PADDING = 64
# Rows that the kernels for 4-bit integers (Marlin) take at once.
MARLIN_ROWS = 64
MARLIN_METHODS = ("awq", "gptq")
# Kernels for these pad the experts' width (gpt-oss runs with tensor 8, 2880 / 8 = 360).
PADDED_EXPERTS = ("mxfp4",)


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """The reason why a split is impossible: one sentence with the numbers, and what works."""

    what: str
    hint: str


def find_obstacle(
    shape: ModelShape, *, tensor: int, stages: tuple[int, ...], expert: int = 1, layers_only: bool = False
) -> Obstacle | None:
    """Return the first reason why ``shape`` cannot be divided, or None.

    stages: layers of each pipeline stage; expert: ranks that divide experts by copies, 1: none do
    layers_only: the engine has no tensor parallelism
    """
    num_layers = len(shape.layers)
    if sum(stages) != num_layers or min(stages) < 1:
        return Obstacle(
            what=f"{len(stages)} stages of {', '.join(map(str, stages))} layers do not make {num_layers} layers",
            hint=f"give each of at most {num_layers} stages one layer or more",
        )
    if layers_only and tensor > 1:
        return Obstacle(what=f"tensor {tensor}: this engine divides layers only", hint=f"use {tensor} stages instead")
    found = shape.once(("obstacle", tensor, expert), lambda: _tensor_obstacle(shape, tensor, expert))
    if not found:
        return None
    return Obstacle(what=found, hint=f"tensor {nearest_degrees(tensor_degrees(shape, expert=expert), tensor)} works")


def tensor_degrees(shape: ModelShape, *, expert: int = 1) -> list[int]:
    """Return degrees of tensor parallelism up to 64 into which the model divides."""
    return working_degrees(lambda degree: _tensor_obstacle(shape, degree, expert))


def working_degrees(obstacle: Callable[[int], str]) -> list[int]:
    """Return the degrees up to 64 that have no obstacle."""
    return [degree for degree in range(1, MAX_DEGREE + 1) if not obstacle(degree)]


def nearest_degrees(degrees: Sequence[int], tensor: int) -> str:
    """Return the next lower and the next higher degree than ``tensor``, in words."""
    near = [degree for degree in degrees if degree < tensor][-1:] + [d for d in degrees if d > tensor][:1]
    return " or ".join(map(str, near))


def head_obstacle(num_heads: int, num_kv_heads: int, tensor: int) -> str:
    """Return why attention heads cannot be divided; key-value heads may also be copied (QKVParallelLinear)."""
    if num_heads % tensor:
        return f"{num_heads} attention heads are not divisible by tensor {tensor}"
    if num_kv_heads and num_kv_heads % tensor and tensor % num_kv_heads:
        return f"{num_kv_heads} key-value heads and tensor {tensor} do not divide each other"
    return ""


def vocab_obstacle(vocab_size: int, tensor: int) -> str:
    """Return why the embedding cannot be divided."""
    padded = -(-vocab_size // VOCAB_PADDING) * VOCAB_PADDING
    if padded % tensor:
        return f"the vocabulary of {vocab_size}, padded to {padded}, is not divisible by tensor {tensor}"
    return ""


def _tensor_obstacle(shape: ModelShape, tensor: int, expert: int) -> str:
    if tensor == 1:
        return ""
    found = (why for layer in shape.kinds for why in _layer_obstacles(shape, layer, tensor, expert))
    return next(found, "") or vocab_obstacle(shape.vocab_size, tensor)


def _layer_obstacles(shape: ModelShape, layer: Layer, tensor: int, expert: int) -> Iterator[str]:
    yield from _head_obstacles(layer, tensor)
    for weight in sorted(layer.weights, key=lambda weight: weight.shard != "in"):
        if not (weight.part == "experts" and (expert > 1 or shape.quantization in PADDED_EXPERTS)):
            yield from _weight_obstacles(weight, tensor, shape.quantization in MARLIN_METHODS)


def _head_obstacles(layer: Layer, tensor: int) -> Iterator[str]:
    cache = layer.cache
    if found := head_obstacle(layer.num_heads, cache.num_kv_heads * (cache.kind in ("full", "window")), tensor):
        yield found
    if cache.kind == "state" and cache.num_state_heads % tensor:
        yield f"{cache.num_state_heads} heads of a linear mixer are not divisible by tensor {tensor}"


def _weight_obstacles(weight: Weight, tensor: int, marlin: bool) -> Iterator[str]:
    match weight.shard:
        case "in":
            yield from _side(weight, "inputs", weight.columns, tensor, weight.group)
        case "out":
            rows = weight.row_group or (_marlin_rows(weight) if marlin and weight.group else 0)
            yield from _side(weight, "outputs", weight.rows, tensor, rows)
        case "kv_heads":
            parts = min(tensor, weight.units or tensor)
            yield from _side(weight, "outputs", weight.rows, parts, weight.row_group)


def _marlin_rows(weight: Weight) -> int:
    """Return rows that count together; gate and up projections are one matrix for the kernel: half for each."""
    return MARLIN_ROWS // 2 if weight.name.endswith(("gate_proj", "up_proj")) else MARLIN_ROWS


def _side(weight: Weight, side: str, size: int, parts: int, group: int) -> Iterator[str]:
    """Yield obstacles of cutting ``size`` numbers into ``parts``, none within a group of ``group``."""
    if size % parts:
        yield f"{weight.name}: {size} {side} are not divisible by {parts} ranks"
    elif group and parts > 1 and (size // parts) % group:
        yield (
            f"{weight.name}: {size} {side} / {parts} ranks = {size // parts} is not a multiple of the {group} numbers "
            "that are quantized or computed together"
        )
