"""Bytes of a smaller model that proposes tokens: its weights, and its caches beside those of the model.

Source: vLLM 0.32, ``SpeculativeConfig``: the ranks of the last stage hold it, divided as the model's own layers are,
and compute it with the model's type of numbers. Its cache has a block for each block of the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.planner.memory.divide import Obstacle, find_obstacle
from longboat.planner.memory.kv_room import StageCaches, stage_caches
from longboat.planner.memory.processor import computed_shape
from longboat.planner.memory.split_shape import Card, Load, Split
from longboat.planner.memory.stage_weights import stage_weights

__all__ = ("draft_bytes", "draft_cache_bytes", "draft_obstacle", "with_draft_caches")


def draft_bytes(card: Card, split: Split, load: Load) -> int:
    """Return the bytes of its weights on one rank of the last stage; 0 where nothing is proposed by a model."""
    if load.draft is None:
        return 0
    (weights,) = stage_weights(computed_shape(card, load, load.draft), _own_split(split, load))
    return sum(weights.values())


def draft_cache_bytes(split: Split, load: Load) -> float:
    """Return the bytes of its cache for each token, on one rank."""
    return _caches(split, load).bytes_per_token() if load.draft is not None else 0.0


def draft_obstacle(split: Split, load: Load) -> Obstacle | None:
    """Return why it cannot be divided as the model is; None where it can."""
    if load.draft is None:
        return None
    found = find_obstacle(load.draft, tensor=split.cut, stages=_own_split(split, load).stages, expert=1)
    return None if found is None else replace(found, what=f"the draft model {load.draft.name}: {found.what}")


def with_draft_caches(caches: Sequence[StageCaches], split: Split, load: Load) -> tuple[StageCaches, ...]:
    """Return the caches of all stages with its own in the last one."""
    if load.draft is None:
        return tuple(caches)
    *others, last = caches
    return (*others, replace(last, kinds=(*last.kinds, *_caches(split, load).kinds)))


def _caches(split: Split, load: Load) -> StageCaches:
    assert load.draft is not None
    (found,) = stage_caches(load.draft, _own_split(split, load), load.kv_bytes)
    return found


def _own_split(split: Split, load: Load) -> Split:
    assert load.draft is not None
    return Split(tensor=split.cut, stages=(len(load.draft.layers),))
