"""What would make it fit: the nearest change in each direction, tried with the same planning, never guessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.memory.divide import tensor_degrees
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.split_shape import Card, Load, Split, even_stages

__all__ = ("Change", "nearest_changes")

ChangeKind = Literal["context", "sequences", "kv", "ratio", "stages", "quantization", "tensor", "pipeline"]
MAX_RATIO = 0.97
MAX_CARDS = 64
USEFUL_CONTEXT_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, in words, and the plan that it leads to."""

    kind: ChangeKind
    what: str
    fit: Fit


def nearest_changes(fit: Fit, cards: Sequence[Card]) -> tuple[Change, ...]:
    """Return changes each of which alone makes ``fit`` fit and hold its load, nearest of its kind; none where it does.

    cards: as ``fit`` was planned on
    """
    if fit.holds:
        return ()
    found = (
        _less_context(fit, cards),
        _fewer_sequences(fit, cards),
        _narrow_cache(fit, cards),
        _more_of_the_card(fit, cards),
        _other_stages(fit, cards),
        _fewer_bits(fit, cards),
        _more_tensor(fit, cards),
        _more_stages(fit, cards),
    )
    return tuple(change for change in found if change is not None)


def _tried(
    fit: Fit,
    cards: Sequence[Card],
    *,
    shape: ModelShape | None = None,
    split: Split | None = None,
    load: Load | None = None,
) -> Fit:
    return plan_fit(shape or fit.shape, cards, split or fit.split, load or fit.load)


def _less_context(fit: Fit, cards: Sequence[Card]) -> Change | None:
    tokens = fit.context_at_load
    if not fit.runs or tokens < USEFUL_CONTEXT_TOKENS or tokens >= fit.load.context_tokens:
        return None
    tried = _tried(fit, cards, load=replace(fit.load, context_tokens=tokens))
    return (
        Change(kind="context", what=f"context {tokens} instead of {fit.load.context_tokens}", fit=tried)
        if tried.holds
        else None
    )


def _fewer_sequences(fit: Fit, cards: Sequence[Card]) -> Change | None:
    if not 1 <= fit.max_sequences < fit.load.num_sequences:
        return None
    tried = _tried(fit, cards, load=replace(fit.load, num_sequences=fit.max_sequences))
    what = f"{fit.max_sequences} requests at once instead of {fit.load.num_sequences}"
    return Change(kind="sequences", what=what, fit=tried) if tried.holds else None


def _narrow_cache(fit: Fit, cards: Sequence[Card]) -> Change | None:
    if not fit.runs or fit.load.kv_bits <= 8:
        return None
    tried = _tried(fit, cards, load=replace(fit.load, kv_bits=8))
    return Change(kind="kv", what="a cache of 8 bits", fit=tried) if tried.holds else None


def _more_of_the_card(fit: Fit, cards: Sequence[Card]) -> Change | None:
    if not engine_traits(fit.load.engine).memory_ratio or not fit.runs:
        return None
    tried = _tried(fit, cards, load=replace(fit.load, memory_ratio=MAX_RATIO))
    return Change(kind="ratio", what=f"gpu-memory-utilization {MAX_RATIO:g}", fit=tried) if tried.holds else None


def _other_stages(fit: Fit, cards: Sequence[Card]) -> Change | None:
    """Move layers from the rank with the least room to the one with the most, as long as that helps."""
    split, best = fit.split, fit
    if split.pipeline < 2 or not fit.runs:
        return None
    for _ in range(len(fit.shape.layers)):
        stages = _moved(best)
        if min(stages) < 1:
            return None
        tried = _tried(fit, cards, split=replace(split, stages=stages))
        if tried.holds:
            return Change(kind="stages", what=f"stages of {', '.join(map(str, stages))} layers", fit=tried)
        if _room(tried) <= _room(best):
            return None
        best = tried
    return None


def _room(fit: Fit) -> int:
    return min(rank.room_bytes - fit.load.num_sequences * rank.sequence_bytes for rank in fit.ranks)


def _moved(fit: Fit) -> tuple[int, ...]:
    left = [rank.room_bytes - fit.load.num_sequences * rank.sequence_bytes for rank in fit.ranks]
    rank_of = {left[index]: rank.stage for index, rank in enumerate(fit.ranks)}
    stages = list(fit.split.stages)
    stages[rank_of[min(left)]] -= 1
    stages[rank_of[max(left)]] += 1
    return tuple(stages)


def _fewer_bits(fit: Fit, cards: Sequence[Card]) -> Change | None:
    for name in engine_traits(fit.load.engine).fewer_bits:
        shape = requantized(fit.shape, name)
        if shape.weight_bytes >= fit.shape.weight_bytes:
            continue
        tried = _tried(fit, cards, shape=shape)
        if tried.holds:
            return Change(kind="quantization", what=f"weights in {name}", fit=tried)
    return None


def _more_tensor(fit: Fit, cards: Sequence[Card]) -> Change | None:
    if not engine_traits(fit.load.engine).tensor_parallel:
        return None
    for tensor in tensor_degrees(fit.shape, expert=fit.split.expert):
        width = tensor * fit.split.data
        if fit.split.tensor < width and width * fit.split.pipeline <= MAX_CARDS:
            more = [card for stage in _by_stage(fit, cards) for card in [_weakest(stage)] * width]
            tried = _tried(fit, more, split=replace(fit.split, tensor=width))
            if tried.holds:
                what = f"tensor {tensor} instead of {fit.split.cut}: {len(more)} cards like these"
                return Change(kind="tensor", what=what, fit=tried)
    return None


def _more_stages(fit: Fit, cards: Sequence[Card]) -> Change | None:
    card = _weakest(cards)
    for pipeline in _pipelines(fit):
        split = replace(fit.split, stages=even_stages(len(fit.shape.layers), pipeline))
        tried = _tried(fit, [card] * split.num_ranks, split=split)
        if tried.holds:
            what = f"{pipeline} stages instead of {fit.split.pipeline}: {split.num_ranks} cards like {card.name}"
            return Change(kind="pipeline", what=what, fit=tried)
    return None


def _pipelines(fit: Fit) -> Iterator[int]:
    most = min(len(fit.shape.layers), MAX_CARDS // fit.split.tensor)
    yield from range(fit.split.pipeline + 1, most + 1)


def _by_stage(fit: Fit, cards: Sequence[Card]) -> Iterator[Sequence[Card]]:
    tensor = fit.split.tensor
    yield from (cards[start : start + tensor] for start in range(0, len(cards), tensor))


def _weakest(cards: Sequence[Card]) -> Card:
    return min(cards, key=lambda card: card.usable_bytes)
