"""Does a model fit on these cards, split so: bytes by part on every rank, and what is left for caches.

A rank is one card. All ranks of a stage hold the same; the weakest of all decides how many tokens the replica keeps,
because an engine gives every rank the same number of cache blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.memory.adapter_room import adapter_bytes
from longboat.planner.memory.budget import (
    Budget,
    budget_of,
    engine_sequences,
    in_flight_tokens,
    modest_load,
    overhead_of,
    padding_bytes,
    state_copies,
    window_batch,
)
from longboat.planner.memory.divide import Obstacle, find_obstacle
from longboat.planner.memory.draft import draft_bytes, draft_obstacle, with_draft_caches
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.kv_room import StageCaches, max_context, stage_caches
from longboat.planner.memory.processor import computed_load, computed_shape, is_wide, packed_bytes
from longboat.planner.memory.split_shape import Card, Load, Split
from longboat.planner.memory.stage_weights import ram_bytes, stage_weights

__all__ = ("Fit", "RankBytes", "Shortage", "plan_fit")

GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class RankBytes:
    """The bytes of one rank by part, and what is left."""

    stage: int
    tensor_rank: int
    card: Card
    weights: Mapping[str, int]  # by part of the model
    overhead: Mapping[str, int]  # activations, graphs and so on
    budget_bytes: int  # that the engine may use of the card
    budget_rule: str
    sequence_bytes: int
    in_flight_bytes: int  # of caches: what steps under way take beside all sequences
    num_tokens: int  # that this rank alone could keep, in sequences of the load's context
    weight_bytes: int  # all of ``weights``
    overhead_bytes: int  # all of ``overhead``
    cache_bytes: int = 0  # that the engine gives to caches here, for as many tokens as the weakest rank keeps
    required_cache_bytes: int = 0  # that the engine must give by its settings; 0: what is left

    @property
    def cache_room_bytes(self) -> int:
        """Bytes that caches may have: those of the setting, or those that are left."""
        return self.required_cache_bytes or self.room_bytes

    def cache_need(self, sequences: int) -> int:
        """Return the bytes of caches that this number of sequences needs."""
        return sequences * self.sequence_bytes + self.in_flight_bytes

    @property
    def room_bytes(self) -> int:
        return self.budget_bytes - self.weight_bytes - self.overhead_bytes

    @property
    def used_bytes(self) -> int:
        """All that the engine takes."""
        return self.weight_bytes + self.overhead_bytes + self.cache_bytes


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """The constraint that is broken: where, what is needed and what there is, in bytes, and one sentence."""

    what: str
    stage: int = 0
    needed_bytes: int = 0
    available_bytes: int = 0
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a model fits on cards, and how much they hold besides."""

    shape: ModelShape
    split: Split
    load: Load  # as asked for, with the settings that the engine must start with where its defaults need too much
    # The first of some ranks of a stage that are alike, without ``cache_bytes``, and their number.
    runs: tuple[tuple[RankBytes, int], ...]
    fits: bool  # the engine starts with the load's context
    holds: bool  # it also keeps all sequences of the load at once
    num_kv_tokens: int = 0  # that the replica keeps: the least over its ranks
    max_sequences: int = 0  # sequences of the load's context that are kept at once
    caches: tuple[StageCaches, ...] = ()  # of each stage
    shortage: Shortage | None = None  # what is broken where it does not fit

    @property
    def ranks(self) -> tuple[RankBytes, ...]:
        """Every rank, stage by stage; empty where the split is refused before bytes are counted."""
        return tuple(
            replace(first, tensor_rank=first.tensor_rank + more, cache_bytes=self._cache_bytes(first))
            for first, count in self.runs
            for more in range(count)
        )

    def _cache_bytes(self, rank: RankBytes) -> int:
        tokens = self.num_kv_tokens // self.split.data if self.fits else 0
        return rank.sequence_bytes * tokens // self.load.context_tokens

    @property
    def unlike_ranks(self) -> list[RankBytes]:
        """One of each run of equal ranks, without the bytes that caches get, which searches do not need."""
        return [first for first, _ in self.runs]

    @property
    def max_context_tokens(self) -> int:
        """The longest that one sequence alone can have with the settings of ``load``; others may allow longer ones."""
        return self._longest(1)

    @property
    def request_tokens(self) -> int:
        """The longest request that runs: with slots, what one of them has room for."""
        return self.load.context_tokens if engine_traits(self.load.engine).slots else self.max_context_tokens

    @property
    def context_at_load(self) -> int:
        """The longest that all sequences of the load can have, with its settings."""
        return self._longest(-(-self.load.num_sequences // self.split.data))

    def _longest(self, num_sequences: int) -> int:
        if not self.runs:
            return 0
        caches = [self.caches[rank.stage] for rank in self.unlike_ranks]
        rooms = [rank.cache_room_bytes for rank in self.unlike_ranks]
        return max_context(caches, rooms, num_sequences, self.shape.max_context_tokens)

    def num_kv_blocks(self, block_tokens: int) -> int | None:
        """Return cache blocks that vLLM makes, the least over the ranks; None where kinds of layers share blocks."""
        counts = [
            self.caches[rank.stage].num_blocks(max(0, rank.cache_room_bytes), block_tokens)
            for rank in self.unlike_ranks
        ]
        known = [count for count in counts if count is not None]
        return min(known) if known and len(known) == len(counts) else None

    @property
    def weakest(self) -> RankBytes:
        """The rank that decides how many tokens are kept."""
        return min(self.unlike_ranks, key=lambda rank: (rank.num_tokens, rank.room_bytes))


def plan_fit(shape: ModelShape, cards: Sequence[Card], split: Split, load: Load) -> Fit:
    """Return whether ``shape`` fits on ``cards``, one a rank: the ranks of the first stage, then of the next.

    Where the engine's own defaults take too much memory, smaller settings are tried: ``load`` of the answer has them.

    Raises ValueError where there are more or fewer cards than ranks.
    """
    first = _plan(shape, cards, split, load)
    enough = first.holds or load.as_set or (load.fixed and first.fits)
    modest = None if enough or not first.runs else modest_load(cards, split, load)
    if modest is None:
        return first
    second = _plan(shape, cards, split, modest)
    if first.fits and second.fits and not second.holds:
        return max(first, second, key=_runs)
    if first.fits or second.fits:
        return second if second.fits else first
    return max(first, second, key=lambda fit: fit.max_context_tokens)


def _runs(fit: Fit) -> int:
    """Return the requests that run at once: those that the cache keeps, and that the engine prepares for."""
    return min(fit.max_sequences, engine_sequences(fit.load, fit.runs[0][0].card) * fit.split.data)


def _plan(shape: ModelShape, cards: Sequence[Card], split: Split, load: Load) -> Fit:
    if len(cards) != split.num_ranks:
        raise ValueError(f"{split.num_ranks} ranks need as many cards, not {len(cards)}")
    shape, load = computed_shape(cards[0], load, shape), computed_load(cards[0], load)
    layers_only = not engine_traits(load.engine).tensor_parallel
    obstacle = find_obstacle(shape, tensor=split.cut, stages=split.stages, expert=split.expert, layers_only=layers_only)
    obstacle = obstacle or draft_obstacle(split, load)
    if obstacle is not None:
        return _refused(shape, split, load, obstacle)
    caches = stage_caches(
        shape,
        split,
        load.kv_bytes,
        window_batch(load),
        states=state_copies(load),
        in_flight_tokens=in_flight_tokens(load, cards[0], split),
    )
    caches = with_draft_caches(caches, split, load)
    runs = _runs_of(shape, cards, split, load, caches)
    return _judge(shape, split, load, runs, caches)


def _refused(shape: ModelShape, split: Split, load: Load, obstacle: Obstacle) -> Fit:
    shortage = Shortage(what=obstacle.what, hint=obstacle.hint)
    return Fit(shape=shape, split=split, load=load, runs=(), fits=False, holds=False, shortage=shortage)


def _runs_of(
    shape: ModelShape, cards: Sequence[Card], split: Split, load: Load, caches: Sequence[StageCaches]
) -> list[tuple[RankBytes, int]]:
    """Return the ranks; those of a stage that are on equal cards are counted once."""
    weights = list(stage_weights(shape, split))
    if ram_bytes(shape, split, cards[0], load):
        weights[0] = {part: size for part, size in weights[0].items() if part != "embedding"}
    known: dict[tuple[Card, bool], tuple[Budget, Mapping[str, int]]] = {}
    runs: list[tuple[RankBytes, int]] = []
    for index, card, count in _card_runs(cards, split.tensor):
        stage = index // split.tensor
        last = stage == split.pipeline - 1
        if (card, last) not in known:
            known[card, last] = budget_of(card, split, load), overhead_of(card, shape, split, load, last=last)
        budget, common = known[card, last]
        overhead = _with_copies(common, card, load, weights[stage])
        if padding := _padding(card, shape, split, load, weights[stage]):
            overhead = {**overhead, "padding": padding}
        overhead = _with_adapters(overhead, card, shape, split, load, stage)
        if last and (taken := draft_bytes(card, split, load)):
            overhead = {**overhead, "draft model": taken}
        rank = _rank(card, budget, divmod(index, split.tensor), load, weights[stage], overhead, caches[stage])
        runs.append((rank, count))
    return runs


def _card_runs(cards: Sequence[Card], tensor: int) -> Iterator[tuple[int, Card, int]]:
    """Yield the first of equal cards in a row within a stage: its rank, the card, and how many they are."""
    for start in range(0, len(cards), tensor):
        index = start
        for card, run in groupby(cards[start : start + tensor]):
            count = sum(1 for _ in run)
            yield index, card, count
            index += count


def _with_copies(overhead: Mapping[str, int], card: Card, load: Load, weights: Mapping[str, int]) -> Mapping[str, int]:
    copies = packed_bytes(weights) if is_wide(card, load) else 0
    return {**overhead, "packed copies": copies} if copies else overhead


def _padding(card: Card, shape: ModelShape, split: Split, load: Load, weights: Mapping[str, int]) -> int:
    """Return what the engine's kernels add to the experts' weights on accelerators."""
    padded = engine_traits(load.engine).pads_experts and card.kind == "gpu"
    return padding_bytes(shape, split, weights.get("experts", 0)) if padded else 0


def _with_adapters(
    overhead: Mapping[str, int], card: Card, shape: ModelShape, split: Split, load: Load, stage: int
) -> Mapping[str, int]:
    if load.adapters is None:
        return overhead
    number_bytes = 4 if is_wide(card, load) else 2
    room = adapter_bytes(shape, split, load.adapters, number_bytes=number_bytes, in_host=card.kind == "cpu")
    return {**overhead, "adapters": room[stage]}


def _rank(
    card: Card,
    budget: Budget,
    number: tuple[int, int],
    load: Load,
    weights: Mapping[str, int],
    overhead: Mapping[str, int],
    caches: StageCaches,
) -> RankBytes:
    """Return a rank. number: of its stage, and of the rank there."""
    one = caches.bytes_of(load.context_tokens)
    weight_bytes, overhead_bytes = sum(weights.values()), sum(overhead.values())
    room = budget.num_bytes - weight_bytes - overhead_bytes
    asked = load.cache_bytes or one * load.cache_tokens // max(1, load.context_tokens)
    given = asked or room
    return RankBytes(
        stage=number[0],
        tensor_rank=number[1],
        card=card,
        weights=weights,
        overhead=overhead,
        weight_bytes=weight_bytes,
        overhead_bytes=overhead_bytes,
        budget_bytes=budget.num_bytes,
        budget_rule=budget.rule,
        sequence_bytes=one,
        in_flight_bytes=caches.in_flight_bytes(load.context_tokens),
        num_tokens=max(0, given) * load.context_tokens // max(1, one),
        required_cache_bytes=asked,
    )


def _judge(
    shape: ModelShape,
    split: Split,
    load: Load,
    runs: Sequence[tuple[RankBytes, int]],
    caches: Sequence[StageCaches],
) -> Fit:
    ranks = [rank for rank, _ in runs]
    sequences = min(
        max(0, rank.cache_room_bytes - rank.in_flight_bytes) // max(1, rank.sequence_bytes) for rank in ranks
    )
    slots = engine_traits(load.engine).slots
    needed = load.num_sequences if slots and not load.cache_tokens else 1  # slots may share one cache
    shortage = _shortage(shape, load, ranks, needed)
    tokens = min(rank.num_tokens for rank in ranks)
    if slots:
        tokens = min(tokens, load.num_sequences * load.context_tokens)
        sequences = sequences if shortage else min(sequences, load.num_sequences)
    tokens, sequences = tokens * split.data, sequences * split.data
    return Fit(
        shape=shape,
        split=split,
        load=load,
        runs=tuple(runs),
        fits=shortage is None,
        holds=shortage is None and sequences >= load.num_sequences,
        num_kv_tokens=tokens,
        max_sequences=sequences,
        caches=tuple(caches),
        shortage=shortage,
    )


def _shortage(shape: ModelShape, load: Load, ranks: Sequence[RankBytes], needed: int) -> Shortage | None:
    """Return the first rule that is broken, on the rank where it is broken worst."""
    if shape.max_context_tokens and load.context_tokens > shape.max_context_tokens:
        return Shortage(
            what=f"a context of {load.context_tokens} tokens is longer than the model's {shape.max_context_tokens}",
            hint=f"ask for {shape.max_context_tokens} tokens or fewer",
        )
    taken = [rank for rank in ranks if rank.card.free_bytes is not None and rank.card.free_bytes < rank.budget_bytes]
    if taken and engine_traits(load.engine).memory_ratio:
        return _not_free(taken[0])
    worst = min(ranks, key=lambda rank: rank.cache_room_bytes - rank.cache_need(needed))
    if worst.cache_room_bytes < worst.cache_need(needed):
        return _too_little(load, worst, needed)
    tight = min(ranks, key=lambda rank: rank.room_bytes - load.cache_bytes)
    return _too_little(load, tight, needed) if load.cache_bytes > tight.room_bytes else None


def _not_free(rank: RankBytes) -> Shortage:
    free = rank.card.free_bytes or 0
    return Shortage(
        what=f"{rank.card.name} of stage {rank.stage} has {free / GIB:.1f} GiB free, the engine takes "
        f"{rank.budget_bytes / GIB:.1f} GiB ({rank.budget_rule})",
        stage=rank.stage,
        needed_bytes=rank.budget_bytes,
        available_bytes=free,
        hint=f"lower the ratio to {free / rank.card.memory_bytes:.2f}, or free the card",
    )


def _too_little(load: Load, rank: RankBytes, needed: int) -> Shortage:
    """Return what is short: weights alone, or weights and the cache of the context that is asked for."""
    where = f"{rank.card.name} of stage {rank.stage}"
    fixed = rank.weight_bytes + rank.overhead_bytes
    kept = f"{fixed / GIB:.1f} GiB of weights and buffers"
    asked = max(rank.cache_need(needed), rank.required_cache_bytes)
    if rank.required_cache_bytes and rank.required_cache_bytes < rank.cache_need(needed):
        what = (
            f"{where} needs {rank.cache_need(needed) / GIB:.2f} GiB of cache for {load.context_tokens} tokens, "
            f"and the engine is set to take {rank.required_cache_bytes / GIB:.2f} GiB"
        )
    elif rank.room_bytes < 0:
        what = (
            f"{where} must hold {kept}, and the engine may use {rank.budget_bytes / GIB:.1f} GiB ({rank.budget_rule})"
        )
    else:
        sequences = f"{needed} x " if needed > 1 else ""
        what = (
            f"{where} must hold {kept} and {asked / GIB:.1f} GiB of cache for {sequences}{load.context_tokens} tokens, "
            f"and the engine may use {rank.budget_bytes / GIB:.1f} GiB ({rank.budget_rule})"
        )
    return Shortage(what=what, stage=rank.stage, needed_bytes=fixed + asked, available_bytes=rank.budget_bytes)
