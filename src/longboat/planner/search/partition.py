"""Layers for each pipeline stage by memory and by speed, with embedding and head where they really sit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.planner.memory.adapter_room import adapter_parts
from longboat.planner.memory.budget import (
    budget_of,
    modest_load,
    overhead_of,
    padding_bytes,
    state_copies,
    window_batch,
)
from longboat.planner.memory.draft import draft_bytes, draft_cache_bytes
from longboat.planner.memory.engine import EngineTraits, engine_traits
from longboat.planner.memory.kv_room import sequence_bytes
from longboat.planner.memory.processor import is_wide, packed_bytes
from longboat.planner.memory.split_shape import Card, Load, Split, even_stages
from longboat.planner.memory.stage_weights import end_weights, ram_bytes, stage_weights
from longboat.planner.predict.deployment import Counted, Deployment, Stage
from longboat.planner.predict.load import Load as Traffic
from longboat.planner.predict.machine import Fabric, Machine
from longboat.planner.predict.terms import DEFAULTS
from longboat.planner.predict.work import Pass, each_work

__all__ = ("Place", "StageTimes", "partitions")

SEARCH_STEPS = 24
# Seconds of stages that differ by this share of them count as equal.
ALIKE = 1e-6
TINY_S = 1e-30


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place where one stage can be."""

    pool: int  # its number
    card: Card
    machine: Machine
    link: Fabric  # between the accelerators of the stage
    near: Fabric | None = None  # between those of one data part; None: as ``link``


class StageTimes:
    """Seconds that a layer, or the head, takes for one step of a load: a decode step and its share of prompts.

    Counted with usual constants, once for each sort of layer and place.
    """

    def __init__(
        self, shape: ModelShape, engine: EngineTraits, traffic: Traffic, counted: Counted | None = None
    ) -> None:
        """counted: work of layers that was counted for the same model and engine (``work``)."""
        self._shape, self._engine, self._traffic = shape, engine, traffic
        self._known: dict[tuple[object, ...], tuple[float, float]] = {}
        self._counted: Counted = {} if counted is None else counted

    @property
    def overlaps(self) -> bool:
        """Whether stages compute at the same time."""
        return self._engine.overlaps_stages

    def layer_s(self, layer: Layer, place: Place, tensor: int, expert: int, batch: float) -> float:
        return self._times(layer, place, tensor, expert, batch)[0]

    def head_s(self, place: Place, tensor: int, expert: int, batch: float) -> float:
        return self._times(self._shape.layers[-1], place, tensor, expert, batch)[1]

    def _times(self, layer: Layer, place: Place, tensor: int, expert: int, batch: float) -> tuple[float, float]:
        key = (id(layer), place.machine, place.link, tensor, expert, batch)
        if key not in self._known:
            self._known[key] = self._measured(layer, place, tensor, expert, batch)
        return self._known[key]

    def _measured(self, layer: Layer, place: Place, tensor: int, expert: int, batch: float) -> tuple[float, float]:
        stage = Stage(num_layers=1, machine=place.machine, tensor=tensor, link=place.link)
        alone = Deployment(
            shape=self._shape, engine=self._engine, stages=(stage,), expert=expert, counted=self._counted
        )
        traffic = self._traffic
        context = traffic.mean_prompt_tokens + traffic.mean_output_tokens / 2
        decode = Pass(tokens=batch, sequences=batch, context_tokens=context, decoding=True)
        prompt = traffic.computed_tokens
        before = traffic.mean_prompt_tokens - prompt / 2
        prefill = Pass(tokens=prompt, sequences=1.0, context_tokens=before, decoding=False)
        prompts = batch / traffic.mean_output_tokens
        of_decode, of_prefill = (map(_seconds, each_work(alone, stage, (layer,), step)) for step in (decode, prefill))
        layer_s, head_s = (one_s + prompts * prefill_s for one_s, prefill_s in zip(of_decode, of_prefill, strict=True))
        return layer_s, head_s


def _seconds(work: Mapping[str, float]) -> float:
    return sum((DEFAULTS[name] * value for name, value in work.items()), 0.0)


def partitions(
    shape: ModelShape, places: Sequence[Place], load: Load, times: StageTimes, *, tensor: int, expert_parallel: bool
) -> tuple[tuple[int, ...], ...]:
    """Return layers of each stage that are worth a closer look, best guess first; none where none fits.

    In turn: the slowest stage as quick as can be while all requests of ``load`` are held, or as many requests held as
    can be; for requests that pass one stage after the other, which few do and all of an engine whose stages do not
    overlap, as many layers on the first places as they hold; what the engine does by itself.
    """
    num_layers = len(shape.layers)
    if len(places) == 1:
        return ((num_layers,),)
    if len(places) > num_layers:
        return ()
    shelf = _Shelf(shape, places, load, times, tensor, expert_parallel)
    if shelf.filled(float("inf"), 0.0) is None:
        split = Split(tensor=tensor, stages=even_stages(num_layers, len(places)), expert_parallel=expert_parallel)
        modest = modest_load([place.card for place in places], split, load)
        shelf = _Shelf(shape, places, modest or load, times, tensor, expert_parallel)
    uniform = len({(place.card, place.machine, place.link) for place in places}) == 1
    quickest = shelf.quickest(load.num_sequences)
    tried = [quickest or shelf.roomiest()]
    if not uniform and (load.num_sequences < len(places) or not times.overlaps):
        tried.append(shelf.filled(float("inf"), load.num_sequences))
    if uniform or quickest is None:
        tried.append(even_stages(num_layers, len(places)))
    return tuple(dict.fromkeys(stages for stages in tried if stages is not None))


class _Shelf:
    """Places in a row that layers are put on, in order."""

    def __init__(
        self, shape: ModelShape, places: Sequence[Place], load: Load, times: StageTimes, tensor: int, by_copies: bool
    ) -> None:
        split = Split(tensor=tensor, stages=even_stages(len(shape.layers), len(places)), expert_parallel=by_copies)
        batch = max(1.0, load.num_sequences / (len(places) if times.overlaps else 1))
        last = len(places) - 1
        self.layers = shape.layers
        known = {
            (card, is_last): budget_of(card, split, load).num_bytes
            - sum(overhead_of(card, shape, split, load, last=is_last).values())
            for card, is_last in {(place.card, index == last) for index, place in enumerate(places)}
        }
        # A cache of a given size takes the same of every place, however many layers it is for.
        self.caps = [known[place.card, index == last] - load.cache_bytes for index, place in enumerate(places)]
        for index, parts in zip((0, last), end_weights(shape, split), strict=True):
            wide = is_wide(places[index].card, load)
            self.caps[index] -= sum(parts.values())
            self.caps[index] -= packed_bytes(stage_weights(shape, split)[index]) if wide else 0
        self.caps[0] += ram_bytes(shape, split, places[0].card, load)
        self.caps[last] -= draft_bytes(places[last].card, split, load)
        self.draft_cache = 0.0 if load.cache_bytes else draft_cache_bytes(split, load) * load.context_tokens
        adapters, end_bytes = _adapter_parts(shape, split, places[0].card, load)
        self.caps[0] -= end_bytes
        self.caps[last] -= end_bytes
        self.head_s = times.head_s(places[last], tensor, split.expert, batch)
        kinds = {id(layer): layer for layer in shape.kinds}
        weight = {
            key: layer.rank_bytes(tensor=tensor, expert=split.expert)
            + adapters.get(key, 0)
            + _padding(layer, shape, split, load, places[0].card)
            for key, layer in kinds.items()
        }
        cache = {key: 0.0 if load.cache_bytes else _cache_bytes(layer, load, tensor) for key, layer in kinds.items()}
        self.weight_bytes = _sums(weight[id(layer)] for layer in shape.layers)
        self.cache_bytes = _sums(cache[id(layer)] for layer in shape.layers)
        self.known: tuple[float, list[float]] = (0.0, self.weight_bytes)
        by_place: dict[Place, list[float]] = {}
        for place in set(places):
            each = {key: times.layer_s(layer, place, tensor, split.expert, batch) for key, layer in kinds.items()}
            by_place[place] = _sums(each[id(layer)] for layer in shape.layers)
        self.seconds = [by_place[place] for place in places]

    def filled(self, limit_s: float, num_sequences: float) -> tuple[int, ...] | None:
        """Return as many layers on each place in turn as memory and ``limit_s`` allow; None: some are left."""
        return self._filled(limit_s, num_sequences)[0]

    def _filled(self, limit_s: float, num_sequences: float) -> tuple[tuple[int, ...] | None, float]:
        """Return what ``filled`` does, and the least limit above ``limit_s`` with which some place takes more."""
        stages, layer, next_s = [], 0, inf
        for place in range(len(self.caps)):
            count, at_s = self._room(place, layer, limit_s, num_sequences)
            next_s = min(next_s, at_s)
            if not count:
                return None, next_s
            stages.append(count)
            layer += count
        return (tuple(stages) if layer == len(self.layers) else None), next_s

    def _room(self, place: int, first: int, limit_s: float, num_sequences: float) -> tuple[int, float]:
        """Return layers from ``first`` on that a place takes at most, one being left for each place behind it.

        The second number is the least limit with which it takes one more; infinite where memory is in the way.
        """
        behind = len(self.caps) - 1 - place
        seconds, used, head_s = self.seconds[place], self._used(num_sequences), 0.0 if behind else self.head_s
        by_time = bisect_right(seconds, seconds[first] + limit_s - head_s) - 1
        room = self.caps[place] - (0.0 if behind else num_sequences * self.draft_cache)
        most = min(bisect_right(used, used[first] + room) - 1, len(self.layers) - behind)
        if by_time >= most:
            return max(0, most - first), inf
        taken = max(by_time, first)
        return taken - first, head_s + seconds[taken + 1] - seconds[first]

    def _used(self, num_sequences: float) -> list[float]:
        """Return bytes of the layers up to each, with caches of that many requests; the last answer is kept."""
        if self.known[0] != num_sequences:
            pairs = zip(self.weight_bytes, self.cache_bytes, strict=True)
            self.known = (num_sequences, [weight + num_sequences * cache for weight, cache in pairs])
        return self.known[1]

    def quickest(self, num_sequences: float) -> tuple[int, ...] | None:
        """Return the layers with the least time of the slowest place, and no place emptier than that needs."""
        best = self.filled(float("inf"), num_sequences)
        if best is None:
            return None
        high, low = self._slowest(best), 0.0
        middle = min(high, self.head_s + 1.0 / sum((1.0 / max(TINY_S, seconds[-1]) for seconds in self.seconds), 0.0))
        while high - low > ALIKE * high:
            found, next_s = self._filled(middle, num_sequences)
            if found is None:
                low = max(next_s, middle)
            else:
                high, best = min(self._slowest(found), middle), found
            middle = (low + high) / 2
        return self._evened(best, self._slowest(best), num_sequences)

    def _slowest(self, stages: Sequence[int]) -> float:
        """Return the seconds of the slowest place, and a little for rounding."""
        firsts = list(accumulate(stages, initial=0))
        spent = (self._spent(place, firsts[place], count) for place, count in enumerate(stages))
        return max(spent) * (1.0 + ALIKE)

    def _evened(self, stages: tuple[int, ...], limit_s: float, num_sequences: float) -> tuple[int, ...]:
        """Move layers from full places back to emptier ones behind them while none gets over ``limit_s``."""
        counts, first = list(stages), len(self.layers)
        for place in range(len(counts) - 1, 0, -1):
            first -= counts[place]
            while counts[place - 1] > 1:
                lighter = self._spent(place - 1, first - counts[place - 1], counts[place - 1])
                heavier = self._spent(place, first - 1, counts[place] + 1)
                room, _ = self._room(place, first - 1, limit_s, num_sequences)
                if heavier >= lighter or room < counts[place] + 1:
                    break
                counts[place - 1], counts[place], first = counts[place - 1] - 1, counts[place] + 1, first - 1
        return tuple(counts)

    def _spent(self, place: int, first: int, count: int) -> float:
        head = self.head_s if place == len(self.caps) - 1 else 0.0
        return head + self.seconds[place][first + count] - self.seconds[place][first]

    def roomiest(self) -> tuple[int, ...] | None:
        """Return the layers that hold most requests; None where not even weights find room."""
        best = self.filled(float("inf"), 0.0)
        if best is None:
            return None
        total = max(1.0, self.cache_bytes[-1])
        low, high = 0.0, sum((max(0.0, cap) for cap in self.caps), 0.0) / total
        for _ in range(SEARCH_STEPS):
            middle = (low + high) / 2
            found = self.filled(float("inf"), middle)
            low, high, best = (middle, high, found) if found else (low, middle, best)
        return best


def _padding(layer: Layer, shape: ModelShape, split: Split, load: Load, card: Card) -> int:
    """Return what the engine's kernels add to a layer's experts on accelerators."""
    if not engine_traits(load.engine).pads_experts or card.kind != "gpu":
        return 0
    experts = (one for one in layer.weights if one.part == "experts")
    return padding_bytes(shape, split, sum(one.rank_bytes(tensor=split.cut, expert=split.expert) for one in experts))


def _sums(values: Iterable[float]) -> list[float]:
    """Return the sums of the first 0, 1, 2 … values."""
    return list(accumulate(values, initial=0.0))


def _adapter_parts(shape: ModelShape, split: Split, card: Card, load: Load) -> tuple[Mapping[int, int], int]:
    """Return what adapters take of each sort of layer, by its ``id``, and of the first and the last stage besides."""
    if load.adapters is None:
        return {}, 0
    number_bytes = 4 if is_wide(card, load) else 2
    return adapter_parts(shape, split, load.adapters, number_bytes=number_bytes, in_host=card.kind == "cpu")


def _cache_bytes(layer: Layer, load: Load, tensor: int) -> float:
    size = sequence_bytes(layer.cache, load.context_tokens, load.kv_bytes, window_batch(load), state_copies(load))
    return size / layer.cache.tensor_shards(tensor)
