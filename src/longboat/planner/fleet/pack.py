"""Whether all replicas of a fleet fit on the nodes together: first-fit-decreasing bin packing.

Ray chooses the real nodes; this answers before anything starts whether there is a choice. It is a heuristic: what it
packs does fit, and what it cannot pack might fit in a rare arrangement that it does not try.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

from longboat.core.plan import GangShape
from longboat.core.topology import Node
from longboat.planner.fleet.resources import Amount, amount_of_node, fits, matches, shape_amount

__all__ = ("GangDemand", "Packing", "pack")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangDemand:
    """All replicas of one model: their shape and the labels that their nodes must carry."""

    model: str
    shape: GangShape
    replicas: int
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """model → node ids of each replica that found room, one for each node rank, and how many did not."""

    placed: Mapping[str, tuple[tuple[str, ...], ...]]
    unplaced: Mapping[str, int]

    @property
    def complete(self) -> bool:
        """Whether every replica found room."""
        return not any(self.unplaced.values())


def pack(demands: Sequence[GangDemand], nodes: Sequence[Node]) -> Packing:
    """Place the largest gangs first, each on the first node with room; else those on the most nodes first.

    Nodes of one gang are all different, unless its stages may share them.
    """
    by_size, by_width = (sorted(demands, key=key, reverse=True) for key in (_size, _width))
    first = _packed(by_size, nodes)
    if first.complete or by_width == by_size:
        return first
    second = _packed(by_width, nodes)
    return second if second.complete else first


def _packed(demands: Sequence[GangDemand], nodes: Sequence[Node]) -> Packing:
    rooms = {node.node_id: amount_of_node(node) for node in nodes if node.alive}
    placed: dict[str, tuple[tuple[str, ...], ...]] = {}
    unplaced: dict[str, int] = {}
    for demand in demands:
        candidates = [node for node in nodes if matches(node, demand.labels)]
        gangs = tuple(islice(_gangs(demand.shape, candidates, rooms), demand.replicas))
        placed[demand.model] = gangs
        unplaced[demand.model] = demand.replicas - len(gangs)
    return Packing(placed=placed, unplaced=unplaced)


def _size(demand: GangDemand) -> tuple[int, int, int, int, int]:
    """Return a key that puts large gangs first; among equals, those with the fewest nodes to choose from."""
    need = shape_amount(demand.shape)
    num_labels = len(demand.labels) + sum(len(labels) for labels in demand.shape.stages)
    return need.gpus, need.cpus, need.memory_bytes or 0, demand.shape.num_nodes, num_labels


def _width(demand: GangDemand) -> tuple[int, ...]:
    """Return a key that puts gangs on many nodes first: the others leave them too few nodes with room."""
    return demand.shape.num_nodes, *_size(demand)


def _able(shape: GangShape, candidates: Sequence[Node]) -> list[Sequence[str]]:
    """Return nodes that each bound stage may be on, by their labels alone."""
    keys = [frozenset(labels.items()) for labels in shape.stages]
    known = {key: [node.node_id for node in candidates if matches(node, dict(key))] for key in set(keys)}
    return [known[key] for key in keys]


def _placed_by_stage(shape: GangShape, able: Sequence[Sequence[str]], rooms: dict[str, Amount]) -> tuple[str, ...]:
    """Return the node of each stage, taken out of ``rooms``; empty where one finds none. Choosy stages go first."""
    need, left, chosen = shape_amount(shape), dict(rooms), dict[int, str]()
    for stage in sorted(range(len(able)), key=lambda stage: (len(able[stage]), stage)):
        taken = () if shape.shares_nodes else tuple(chosen.values())
        node = next((one for one in able[stage] if one not in taken and fits(need, left[one])), None)
        if node is None:
            return ()
        chosen[stage] = node
        left[node] -= need
    rooms.update(left)
    return tuple(chosen[stage] for stage in range(len(able)))


def _gangs(shape: GangShape, candidates: Sequence[Node], rooms: dict[str, Amount]) -> Iterator[tuple[str, ...]]:
    """Yield the nodes of each gang that finds room, taken out of ``rooms``."""
    if shape.stages:
        able = _able(shape, candidates)
        while chosen := _placed_by_stage(shape, able, rooms):
            yield chosen
        return
    need = shape_amount(shape)
    free = deque(node.node_id for node in candidates if fits(need, rooms[node.node_id]))
    while len(free) >= shape.num_nodes:  # a node that has no more room is not looked at again
        chosen = (free[0],) if shape.num_nodes == 1 else _emptiest(free, shape.num_nodes, rooms)
        for node_id in chosen:
            rooms[node_id] -= need
        yield chosen
        full = {node_id for node_id in chosen if not fits(need, rooms[node_id])}
        while free and free[0] in full:
            full.remove(free.popleft())
        if full:
            free = deque(node_id for node_id in free if node_id not in full)


def _emptiest(free: Iterable[str], count: int, rooms: Mapping[str, Amount]) -> tuple[str, ...]:
    """Return the nodes with most room: gangs need pairs of different nodes, and so most of them stay open."""
    return tuple(nsmallest(count, free, key=lambda node_id: (-rooms[node_id].gpus, -rooms[node_id].cpus)))
