"""One way to lay a replica over machines: which places, how many ranks at each, and how often it can be made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil

from longboat.planner.partition import Place
from longboat.planner.pools import Pool
from longboat.planner.predict.machine import LOOPBACK, Fabric
from longboat.planner.split_shape import ANY_SPLIT, AskedSplit

__all__ = ("Layout", "layouts", "mixed_layouts", "place_title")

# No use of more stages, or of more ranks in one stage, was seen.
MAX_STAGES, MAX_TENSOR = 64, 64
# Into how many replicas machines are divided; between two of these nothing new happens.
REPLICAS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
POWERS = tuple(count for count in REPLICAS if count & (count - 1) == 0)
MAX_SUBSET_POOLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """places: of the stages, in order; replicas: that the machines have room for; pools: that they take

    hop: between stages; over_network: tensor parallelism crosses nodes
    data_attention: as in ``Split``
    """

    places: tuple[Place, ...]
    tensor: int
    expert_parallel: bool
    replicas: int
    pools: tuple[int, ...]
    hop: Fabric = LOOPBACK
    over_network: bool = False
    data_attention: bool = False

    @property
    def num_ranks(self) -> int:
        return self.tensor * len(self.places)

    def is_as(self, asked: AskedSplit) -> bool:
        """Whether it is the split that is asked for, as far as one is."""
        return (
            asked.tensor in (0, self.tensor)
            and asked.pipeline in (0, len(self.places))
            and (self.expert_parallel or not asked.expert_parallel)
            and not (asked.tensor and self.data_attention)
        )

    @property
    def split_title(self) -> str:
        """``tensor 2 x pipeline 3``."""
        if self.data_attention:
            return f"attention data {self.tensor} x expert parallel"
        parts = [f"tensor {self.tensor}"] if self.tensor > 1 else []
        parts += [f"pipeline {len(self.places)}"] if len(self.places) > 1 else []
        parts += ["expert parallel"] if self.expert_parallel else []
        return " x ".join(parts) or "one card"


def place_title(layout: Layout) -> str:
    """Which accelerators the stages have, equal ones together."""
    runs: list[tuple[str, int]] = []
    for place in layout.places:
        name, count = place.card.name, layout.tensor
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + count)
        else:
            runs.append((name, count))
    return " + ".join(f"{count} x {name}" for name, count in runs)


def layouts(pool: Pool, *, tensor_parallel: bool, has_experts: bool, asked: AskedSplit = ANY_SPLIT) -> Iterator[Layout]:
    """Replicas of equal accelerators, many small ones first; where a split is asked for, those alone."""
    for tensor in [asked.tensor] if asked.tensor else _degrees(pool) if tensor_parallel else [1]:
        stages = _stages(pool, tensor)
        for replicas in sorted((count for count in REPLICAS if count <= stages), reverse=True):
            depth = asked.pipeline or stages // replicas
            fills = replicas * depth <= stages if asked.pipeline else stages // depth == replicas
            if fills and depth <= MAX_STAGES:
                yield from _variants(_layout(pool, tensor, depth, replicas), has_experts)


def _variants(layout: Layout, has_experts: bool) -> Iterator[Layout]:
    yield layout
    if has_experts and layout.tensor > 1:
        yield replace(layout, expert_parallel=True)
        if len(layout.places) == 1:
            yield replace(layout, expert_parallel=True, data_attention=True)


def _degrees(pool: Pool) -> list[int]:
    """Ranks of a stage: within a node powers of two and what divides it, then whole nodes together."""
    each = pool.cards_per_node
    within = {count for count in range(1, each + 1) if each % count == 0 or count & (count - 1) == 0}
    across = {each * nodes for nodes in (2, 3, 4, 8, 16) if nodes <= pool.num_nodes}
    return sorted(degree for degree in within | across if degree <= MAX_TENSOR)


def _stages(pool: Pool, tensor: int) -> int:
    """How many stages of ``tensor`` ranks all machines of the pool have room for."""
    if tensor <= pool.cards_per_node:
        return pool.num_nodes * (pool.cards_per_node // tensor)
    return pool.num_nodes // ceil(tensor / pool.cards_per_node)


def _layout(pool: Pool, tensor: int, depth: int, replicas: int) -> Layout:
    crosses = tensor > pool.cards_per_node
    link = LOOPBACK if tensor == 1 else pool.network if crosses else pool.bus
    within = not crosses and (pool.cards_per_node // tensor) % depth == 0
    place = Place(pool=pool.number, card=pool.card, machine=pool.machine, link=link)
    return Layout(
        places=(place,) * depth,
        tensor=tensor,
        expert_parallel=False,
        replicas=replicas,
        pools=(pool.number,),
        hop=LOOPBACK if depth == 1 else pool.bus if within else pool.network,
        over_network=crosses,
    )


def mixed_layouts(pools: Sequence[Pool], *, tensor_parallel: bool, any_platform: bool) -> Iterator[Layout]:
    """Replicas whose stages are on different accelerators; tensor parallelism stays within a node there.

    any_platform: the engine runs one replica on accelerators of several makers
    """
    for chosen in _subsets(pools):
        if not any_platform and len({pool.platform for pool in chosen}) > 1:
            continue
        most = min(pool.cards_per_node for pool in chosen)
        for tensor in [degree for degree in (1, 2, 4, 8, 16) if degree <= most] if tensor_parallel else [1]:
            slots = [_stages(pool, tensor) for pool in chosen]
            counts = REPLICAS if len(pools) <= MAX_SUBSET_POOLS else POWERS
            for replicas in sorted((count for count in counts if count <= min(slots)), reverse=True):
                depths = [slot // replicas for slot in slots]
                if sum(depths) <= MAX_STAGES and min(slot // d for slot, d in zip(slots, depths, strict=True)) == (
                    replicas
                ):
                    yield from _mixed(chosen, depths, tensor, replicas)


def _subsets(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    """All of them where they are few; else those next to each other in speed, and all."""
    ordered = sorted(pools, key=lambda pool: (-pool.machine.bandwidth_bytes_per_s, -pool.card.usable_bytes))
    sizes = range(2, len(ordered) + 1)
    if len(ordered) <= MAX_SUBSET_POOLS:
        for size in sizes:
            yield from combinations(ordered, size)
        return
    for size in (2, 3):
        yield from (tuple(ordered[start : start + size]) for start in range(len(ordered) - size + 1))
    yield tuple(ordered)


def _mixed(pools: Sequence[Pool], depths: Sequence[int], tensor: int, replicas: int) -> Iterator[Layout]:
    places = [
        Place(pool=pool.number, card=pool.card, machine=pool.machine, link=pool.bus if tensor > 1 else LOOPBACK)
        for pool, depth in zip(pools, depths, strict=True)
        for _ in range(depth)
    ]
    one_node = len({pool.kind for pool in pools}) == 1 and replicas % pools[0].num_nodes == 0
    hop = pools[0].bus if one_node else min((pool.network for pool in pools), key=lambda f: f.bandwidth_bytes_per_s)
    layout = Layout(
        places=tuple(places),
        tensor=tensor,
        expert_parallel=False,
        replicas=replicas,
        pools=tuple(pool.number for pool in pools),
        hop=hop,
    )
    yield layout
    if len(pools) == 2:
        yield replace(layout, places=tuple(reversed(places)))
