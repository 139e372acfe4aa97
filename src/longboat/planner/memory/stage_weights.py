"""Bytes of weights that each rank holds: its layers, and embedding, head and the rest where they really sit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.catalog.shape.weight import Weight
from longboat.planner.memory.split_shape import Split

__all__ = ("counted_layers", "stage_ranges", "stage_weights")


def stage_ranges(split: Split) -> tuple[range, ...]:
    """Return the layers of each stage."""
    ranges, first = [], 0
    for count in split.stages:
        ranges.append(range(first, first + count))
        first += count
    return tuple(ranges)


def counted_layers(layers: Sequence[Layer]) -> Iterator[tuple[Layer, int]]:
    """Yield each layer once, in order, and how often it occurs: equal layers of a model are one object."""
    by_identity = {id(layer): layer for layer in layers}
    for key, count in Counter(map(id, layers)).items():
        yield by_identity[key], count


def stage_weights(shape: ModelShape, split: Split) -> tuple[Mapping[str, int], ...]:
    """Return for each stage the bytes by part of its fullest rank.

    Layers are divided by tensor parallelism; the embedding and the vision tower are on the first stage, the head and
    the final norm on the last. A tied embedding is held twice where first and last stage differ. Modules for
    multi-token prediction are not loaded.
    """
    known: dict[int, Mapping[str, int]] = {}
    stages: list[Counter[str]] = []
    for layers in stage_ranges(split):
        parts: Counter[str] = Counter()
        for layer, count in counted_layers(shape.layers[layers.start : layers.stop]):
            if id(layer) not in known:
                known[id(layer)] = _by_part(layer.weights, split)
            for part, size in known[id(layer)].items():
                parts[part] += count * size
        stages.append(parts)
    _add_ends(shape, split, stages)
    return tuple(dict(parts) for parts in stages)


def _by_part(weights: tuple[Weight, ...], split: Split) -> Counter[str]:
    parts: Counter[str] = Counter()
    for weight in weights:
        cut = split.expert_cut if weight.part == "experts" else split.cut
        parts[weight.part] += weight.rank_bytes(tensor=cut, expert=split.expert)
    return parts


def _add_ends(shape: ModelShape, split: Split, stages: list[Counter[str]]) -> None:
    if shape.embedding is not None:
        stages[0]["embedding"] += shape.embedding.rank_bytes(tensor=split.cut)
    head = shape.head if shape.head is not None else shape.embedding
    if head is not None and (shape.head is not None or len(stages) > 1):
        stages[-1]["head"] += head.rank_bytes(tensor=split.cut)
    for weight in shape.others:
        if weight.part != "mtp":
            stage = stages[0] if weight.part == "vision" else stages[-1]
            stage[weight.part] += weight.rank_bytes(tensor=split.cut)
