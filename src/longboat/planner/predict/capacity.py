"""How many requests fit into the cache at once: a rough count, for rows that do not tell it."""

from __future__ import annotations

from collections.abc import Sequence

from longboat.catalog.shape.model_shape import Layer
from longboat.planner.predict.deployment import Deployment, Stage
from longboat.planner.predict.load import Load

__all__ = ("sequences_that_fit",)

# The share of memory that engines take, and what activations, graphs and communicators need of it. Our estimates.
MEMORY_RATIO = 0.9
RESERVE_BYTES = 5e9
RESERVE_RATIO = 0.25
# A request's output is part written: counted over a life with the blocks that it holds in advance.
HELD_OUTPUT_RATIO = 0.6


def sequences_that_fit(deployment: Deployment, load: Load) -> float:
    """Return requests of the load's lengths that the fullest stage can hold; at least one."""
    stages = zip(deployment.stages, deployment.counted_layers(), strict=True)
    return max(1.0, min(_of_stage(deployment, load, stage, layers) for stage, layers in stages))


def _of_stage(deployment: Deployment, load: Load, stage: Stage, layers: Sequence[tuple[Layer, int]]) -> float:
    weights = sum(count * layer.num_bytes for layer, count in layers) / stage.tensor
    memory = stage.machine.memory_bytes
    room = memory * MEMORY_RATIO - weights - min(RESERVE_BYTES, RESERVE_RATIO * memory)
    held = round(load.mean_prompt_tokens + HELD_OUTPUT_RATIO * load.mean_output_tokens)
    ranks = max(1, stage.tensor // deployment.attention_data)
    each = sum(
        count * layer.cache.bytes_of(held, deployment.cache_bytes) / layer.cache.tensor_shards(ranks)
        for layer, count in layers
    )
    return max(1e9, room) * deployment.attention_data / each if each else float("inf")
