"""Bytes of weights that each rank holds: its layers, and embedding, head and the rest where they really sit."""

from __future__ import annotations

from collections.abc import Mapping

from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.split_shape import Card, Load, Split

__all__ = ("end_weights", "ram_bytes", "stage_ranges", "stage_weights")


def stage_ranges(split: Split) -> tuple[range, ...]:
    """Return the layers of each stage."""
    ranges, first = [], 0
    for count in split.stages:
        ranges.append(range(first, first + count))
        first += count
    return tuple(ranges)


def stage_weights(shape: ModelShape, split: Split) -> tuple[Mapping[str, int], ...]:
    """Return for each stage the bytes by part of its fullest rank.

    Layers are divided by tensor parallelism; the embedding and the vision tower are on the first stage, the head and
    the final norm on the last. A tied embedding is held twice where first and last stage differ. Modules for
    multi-token prediction are not loaded.
    """
    stages = [_layers_by_part(shape, layers, split) for layers in stage_ranges(split)]
    first, last = end_weights(shape, split)
    stages[0] = _added(stages[0], first)
    stages[-1] = _added(stages[-1], last)
    return tuple(stages)


def end_weights(shape: ModelShape, split: Split) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the bytes by part that a rank of the first and of the last stage hold beside their layers."""
    key = ("ends", split.cut, split.pipeline > 1)
    return shape.once(key, lambda: _count_ends(shape, split))


def ram_bytes(shape: ModelShape, split: Split, card: Card, load: Load) -> int:
    """Return the bytes of the embedding that some engines keep in the host's memory, not on an accelerator.

    They do so where all layers are on accelerators too. A tied embedding is also the head, and on the card.
    """
    if not engine_traits(load.engine).embedding_in_ram or card.kind != "gpu" or (shape.tied and split.pipeline == 1):
        return 0
    return end_weights(shape, split)[0].get("embedding", 0)


def _layers_by_part(shape: ModelShape, layers: range, split: Split) -> Mapping[str, int]:
    def count() -> Mapping[str, int]:
        parts: dict[str, int] = {}
        for layer, times in shape.counted_layers(layers.start, layers.stop):
            for part, size in _by_part(shape, layer, split).items():
                parts[part] = parts.get(part, 0) + times * size
        return parts

    return shape.once(("parts", layers.start, layers.stop, *_cuts(split)), count)


def _by_part(shape: ModelShape, layer: Layer, split: Split) -> Mapping[str, int]:
    def count() -> Mapping[str, int]:
        parts: dict[str, int] = {}
        for weight in layer.weights:
            cut = split.expert_cut if weight.part == "experts" else split.cut
            size = weight.rank_bytes(tensor=cut, expert=split.expert)
            parts[weight.part] = parts.get(weight.part, 0) + size
        return parts

    return shape.once(("parts", id(layer), *_cuts(split)), count)


def _cuts(split: Split) -> tuple[int, int, int]:
    return split.cut, split.expert_cut, split.expert


def _added(parts: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    return {part: parts.get(part, 0) + more.get(part, 0) for part in {**parts, **more}}


def _count_ends(shape: ModelShape, split: Split) -> tuple[Mapping[str, int], Mapping[str, int]]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    if shape.embedding is not None:
        first["embedding"] = shape.embedding.rank_bytes(tensor=split.cut)
    head = shape.head if shape.head is not None else shape.embedding
    if head is not None and (shape.head is not None or split.pipeline > 1):
        last["head"] = head.rank_bytes(tensor=split.cut)
    for weight in shape.others:
        if weight.part != "mtp":
            stage = first if weight.part == "vision" else last
            stage[weight.part] = stage.get(weight.part, 0) + weight.rank_bytes(tensor=split.cut)
    return first, last
