"""The ways to lay replicas over machines: the cards of each stage, ranks of a stage, and how many replicas find room.

Equal nodes are counted, not enumerated: layouts differ by kind of card, ranks and stages, never by which of two equal
nodes holds which stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from longboat.planner.machines.pools import Pool
from longboat.planner.memory.split_shape import ANY_SPLIT, AskedSplit
from longboat.planner.predict.machine import LOOPBACK, Fabric
from longboat.planner.search.partition import Place

__all__ = ("REPLICAS", "Layout", "layouts", "mixed_layouts")

# More stages, or more ranks in one stage, were never seen to help.
MAX_STAGES, MAX_TENSOR = 64, 64
# Numbers of replicas into which machines are divided; numbers between two of these bring nothing new.
REPLICAS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
FEW_STAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
POWERS = tuple(count for count in REPLICAS if count & (count - 1) == 0)
POWERS_OF_DATA = tuple(1 << power for power in range(7))
# By the number of kinds of machines: stages on one kind that are tried where more of them may be slower.
FEW_MIXED_STAGES = {2: (1, 2, 3, 4), 3: (1, 2), 4: (1,)}
MIXED_TENSOR = (1, 2, 4, 8, 16)
MAX_SUBSET_POOLS = 4


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Equal replicas on certain cards."""

    places: tuple[Place, ...]  # of the stages, in order
    tensor: int  # ranks of each stage, over all its data parts
    replicas: int
    pools: tuple[int, ...]  # numbers of the pools that it takes cards from
    expert_parallel: bool = False
    data: int = 1  # as in ``Split``
    hop: Fabric = LOOPBACK  # between stages
    over_network: bool = False  # whether tensor parallelism crosses nodes
    hops_cross: bool = False  # whether stages of one replica may be on several nodes
    memory_is_reported: bool = True  # False where the cards' memory is the catalog's and not what the nodes reported

    @property
    def num_ranks(self) -> int:
        return self.tensor * len(self.places)

    @property
    def cut(self) -> int:
        """Ranks of each data part of a stage: the degree of tensor parallelism."""
        return self.tensor // self.data

    @property
    def crosses_nodes(self) -> bool:
        """Whether a replica needs the network between nodes."""
        return self.over_network or self.hops_cross

    @property
    def on_processors(self) -> bool:
        return self.places[0].card.kind == "cpu"

    @property
    def sort(self) -> tuple[object, ...]:
        """What the bytes and the times of its replicas depend on: equal for equal machines, whatever pool they are."""
        runs: list[tuple[Place, int]] = []
        for place in self.places:
            if runs and runs[-1][0] is place:
                runs[-1] = (place, runs[-1][1] + 1)
            else:
                runs.append((place, 1))
        places = tuple((place.card, place.machine, place.link, place.near, count) for place, count in runs)
        return places, self.tensor, self.expert_parallel, self.data, self.hop

    def matches(self, asked: AskedSplit) -> bool:
        """Return whether this is the split that was asked for; what was not asked for may be anything."""
        return (
            asked.tensor in (0, self.cut)
            and asked.pipeline in (0, len(self.places))
            and asked.data in (0, self.data)
            and asked.expert_parallel in (None, self.expert_parallel)
        )

    @property
    def split_title(self) -> str:
        """``tensor 2 x pipeline 3``."""
        parts = [f"data {self.data}"] if self.data > 1 else []
        parts += [f"tensor {self.cut}"] if self.cut > 1 else []
        parts += [f"pipeline {len(self.places)}"] if len(self.places) > 1 else []
        parts += ["expert parallel"] if self.expert_parallel else []
        return " x ".join(parts) or "one card"

    @property
    def cards_title(self) -> str:
        """The accelerators of the stages in order, equal neighbours together: ``2 x RTX 4090 + 1 x L40S``."""
        runs: list[tuple[str, int]] = []
        for place in self.places:
            name, count = place.card.name, self.tensor
            if runs and runs[-1][0] == name:
                runs[-1] = (name, runs[-1][1] + count)
            else:
                runs.append((name, count))
        return " + ".join(f"{count} x {name}" for name, count in runs)

    @property
    def hardware(self) -> str:
        """Each card's name once, in the order of the stages."""
        return " + ".join(dict.fromkeys(place.card.name for place in self.places))


def layouts(
    pool: Pool, *, tensor_parallel: bool, expert_parallel: bool, asked: AskedSplit = ANY_SPLIT
) -> Iterator[Layout]:
    """Yield layouts on equal accelerators, many small replicas first; where a split is asked for, only that one."""
    for tensor in _widths(pool, asked) if tensor_parallel or asked.tensor else [1]:
        stages = pool.stages(tensor)
        for depth in [asked.pipeline] if asked.pipeline else _depths(stages):
            if depth <= min(stages, MAX_STAGES):
                yield from _variants(_layout(pool, tensor, depth), expert_parallel, asked.data)


def _widths(pool: Pool, asked: AskedSplit) -> list[int]:
    """Return ranks of a stage: those that are asked for, or all that may help."""
    if asked.tensor:
        return [asked.tensor * asked.data] if asked.data else [asked.tensor * data for data in POWERS_OF_DATA]
    return sorted({*_degrees(pool), asked.data} if asked.data > 1 else set(_degrees(pool)))


def _depths(stages: int) -> list[int]:
    """Return numbers of stages of one replica, the fewest first: small ones, and those that fill the machines.

    Small numbers leave machines idle at times. They are tried so that a further node never takes away a plan.
    """
    filling = {stages // count for count in REPLICAS if count <= stages}
    return sorted(filling | {depth for depth in FEW_STAGES if depth <= stages})


def _variants(layout: Layout, expert_parallel: bool, data: int) -> Iterator[Layout]:
    """Yield ways to divide requests and experts over the ranks of a stage. data: parts that are asked for; 0: any."""
    yield layout
    if expert_parallel and layout.tensor > 1:
        yield replace(layout, expert_parallel=True)
    parts = [data] if data else POWERS_OF_DATA if expert_parallel and len(layout.places) == 1 else ()
    for count in parts:
        if count > 1 and layout.tensor % count == 0:
            if data:  # experts may be cut besides; the search looks for that only where it is asked for
                yield replace(layout, data=count)
            if expert_parallel:
                yield replace(layout, expert_parallel=True, data=count)


def _degrees(pool: Pool) -> list[int]:
    """Return ranks of a stage: powers of two and what divides a node within one, then several whole nodes."""
    most = pool.cards_per_node
    within = {count for count in range(1, most + 1) if most % count == 0 or count & (count - 1) == 0}
    across = {most * nodes for nodes in (2, 3, 4, 8, 16) if nodes <= pool.slots.count(most)}
    return sorted(degree for degree in within | across if degree <= MAX_TENSOR)


def _layout(pool: Pool, tensor: int, depth: int) -> Layout:
    crosses = tensor > pool.cards_per_node
    link = LOOPBACK if tensor == 1 else pool.network if crosses else pool.bus
    within = not crosses and all((slots // tensor) % depth == 0 for slots in pool.slots)
    place = Place(pool=pool.number, card=pool.card, machine=pool.machine, link=link, near=pool.bus)
    return Layout(
        places=(place,) * depth,
        tensor=tensor,
        replicas=pool.stages(tensor) // depth,
        pools=(pool.number,),
        hop=LOOPBACK if depth == 1 else pool.bus if within else pool.network,
        over_network=crosses,
        hops_cross=depth > 1 and not within,
        memory_is_reported=pool.memory_is_reported,
    )


def mixed_layouts(
    pools: Sequence[Pool], *, tensor_parallel: bool, any_platform: bool, shallow: bool = False
) -> Iterator[Layout]:
    """Yield layouts whose stages are on different accelerators; tensor parallelism stays within a node there.

    any_platform: the engine runs one replica on accelerators of several makers
    shallow: stages do not overlap, so that a replica may be faster on fewer of the accelerators
    """
    for chosen in _subsets(pools):
        if not any_platform and len({pool.platform for pool in chosen}) > 1:
            continue
        most = min(pool.cards_per_node for pool in chosen)
        for tensor in [degree for degree in MIXED_TENSOR if degree <= most] if tensor_parallel else [1]:
            slots = [pool.stages(tensor) for pool in chosen]
            counts = REPLICAS if len(pools) <= MAX_SUBSET_POOLS else POWERS
            for replicas in sorted((count for count in counts if count <= min(slots)), reverse=True):
                for depths in product(*(_mixed_depths(slot // replicas, len(slots), shallow) for slot in slots)):
                    room = min(slot // depth for slot, depth in zip(slots, depths, strict=True))
                    if sum(depths) <= MAX_STAGES and replicas == max(count for count in counts if count <= room):
                        yield from _mixed(chosen, depths, tensor, room)


def _mixed_depths(most: int, num_pools: int, shallow: bool) -> list[int]:
    """Return numbers of stages on one kind of machines: all that find room, or fewer of them too."""
    few = FEW_MIXED_STAGES.get(num_pools, FEW_MIXED_STAGES[4])
    return sorted({most, *(depth for depth in few if depth <= most)}) if shallow else [most]


def _subsets(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    """Yield all of them where they are few; else those next to each other in speed, and all together."""
    ordered = sorted(pools, key=lambda pool: (-pool.machine.bandwidth_bytes_per_s, -pool.card.usable_bytes))
    sizes = range(2, len(ordered) + 1)
    if len(ordered) <= MAX_SUBSET_POOLS:
        for size in sizes:
            yield from combinations(ordered, size)
        return
    for size in (2, 3):
        yield from (tuple(ordered[start : start + size]) for start in range(len(ordered) - size + 1))
    yield tuple(ordered)


def _place(pool: Pool, tensor: int) -> Place:
    link = pool.bus if tensor > 1 else LOOPBACK
    return Place(pool=pool.number, card=pool.card, machine=pool.machine, link=link)


def _mixed(pools: Sequence[Pool], depths: Sequence[int], tensor: int, replicas: int) -> Iterator[Layout]:
    places = [place for pool, depth in zip(pools, depths, strict=True) for place in [_place(pool, tensor)] * depth]
    one_node = len({pool.kinds for pool in pools}) == 1 and replicas % pools[0].num_nodes == 0
    hop = pools[0].bus if one_node else min((pool.network for pool in pools), key=lambda f: f.bandwidth_bytes_per_s)
    layout = Layout(
        places=tuple(places),
        tensor=tensor,
        replicas=replicas,
        pools=tuple(pool.number for pool in pools),
        hop=hop,
        hops_cross=not one_node,
        memory_is_reported=all(pool.memory_is_reported for pool in pools),
    )
    yield layout
    if len(pools) == 2:
        yield replace(layout, places=tuple(reversed(places)))
