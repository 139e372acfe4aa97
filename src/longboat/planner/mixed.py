"""Gangs whose stages sit on nodes of several sorts, each bound by labels to the nodes that it was computed for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from longboat.core.plan import GangShape
from longboat.core.topology import Node
from longboat.planner.cluster_live import ACCELERATOR_LABELS
from longboat.planner.cluster_text import parse_cards
from longboat.planner.ground import accelerator_of
from longboat.planner.place import NoShape, shape_gang
from longboat.planner.site import Site, ground_on, matching_nodes, slots_of
from longboat.spec.types.fleet import ModelSpec, SplitSpec

__all__ = ("NODE_ID", "Sort", "mixed_gangs", "sorts_of", "why_unmixed")

NODE_ID = "ray.io/node-id"
RAY = "ray.io/"
# Nodes whose memory is within this of the largest of their sort are of one sort.
SAME_MEMORY = 0.9
TENSOR = (1, 2, 4, 8, 16)
MAX_STAGES = 64
# More ways to take stages from each sort than this, and only all of them, half of all, a quarter and so on are tried.
MAX_WAYS = 36
PARTS = (1, 2, 4, 8, 16, 32, 64)
# With more sorts, only neighbours in speed are mixed, and all.
MAX_SORTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """Nodes whose ranks get the same card, or about the same memory, and the labels by which they alone are known.

    labels: empty where there is no other sort; None where no label tells them from the others
    speed: sorts first what is quicker, then what has more memory
    """

    nodes: tuple[Node, ...]
    labels: Mapping[str, str] | None
    speed: tuple[float, int]

    def stages(self, slots: Mapping[str, int], tensor: int) -> int:
        """Stages of so many ranks that all nodes together have room for."""
        return sum(slots[node.node_id] // tensor for node in self.nodes)

    def spread(self, slots: Mapping[str, int], tensor: int) -> int:
        """Nodes with room for one stage."""
        return sum(slots[node.node_id] >= tensor for node in self.nodes)


def mixed_gangs(spec: ModelSpec, site: Site) -> Iterator[tuple[ModelSpec, GangShape]]:
    """Every such gang that one replica could have, and the model written so. None where a user fixed the split.

    Stages of one sort follow each other, the quickest sort first or last. One sort alone counts where its nodes have
    room for different numbers of stages, and the same number on each is not possible.
    """
    if spec.split != "auto" or why_unmixed(spec, site):
        return
    sorts, rank = sorts_of(spec, site), site.rank(spec)
    slots = {node.node_id: slots_of(node, rank) for sort in sorts for node in sort.nodes}
    for chosen in _subsets(sorts):
        for tensor in TENSOR:
            most = [sort.stages(slots, tensor) for sort in chosen]
            if not all(most):
                break
            for depths in _depths(most):
                yield from _gangs(spec, site, chosen, depths, tensor, slots)


def why_unmixed(spec: ModelSpec, site: Site) -> str:
    """Why stages are not put on different sorts of nodes, though there are several; ``""`` where they may be."""
    if spec.split != "auto" or len(found := sorts_of(spec, site)) < 2:
        return ""
    if spec.placement.stages is not None:
        return "placement.stages binds them"
    if spec.placement.nodes is not None:
        return f"placement.nodes is {spec.placement.nodes}"
    unbound = [node for sort in found if sort.labels is None for node in sort.nodes]
    if unbound:
        return f"no label tells {unbound[0].hostname or unbound[0].address} from nodes of another sort"
    return ""


def sorts_of(spec: ModelSpec, site: Site) -> tuple[Sort, ...]:
    """The nodes that the model may be on, equal ones together, the quickest first.

    Raises UserInputError where the catalog does not know an accelerator; where nobody names it, there are no sorts.
    """
    rank = site.rank(spec)
    nodes = [node for node in matching_nodes(spec, site) if slots_of(node, rank)]
    if rank.num_gpus not in (0, 1):
        return ()
    groups = _by_card(nodes, site) if rank.num_gpus else _by_memory(nodes, site)
    bound = [part for group in groups for part in _bound(group, nodes)]
    found = []
    for group, labels in bound:
        ground = ground_on({node.node_id: 1 for node in group}, rank, site)
        speed = (-ground.machine.bandwidth_bytes_per_s, -ground.card.usable_bytes)
        found.append(Sort(nodes=tuple(group), labels=labels, speed=speed))
    return tuple(sorted(found, key=lambda sort: (sort.speed, sort.nodes[0].node_id)))


def _by_card(nodes: Sequence[Node], site: Site) -> list[list[Node]]:
    groups: dict[tuple[str, int], list[Node]] = {}
    for node in nodes:
        name = accelerator_of(node, site.accelerators)[0]
        if not name:
            return []
        cards = parse_cards(name, site.library)[0]
        groups.setdefault((cards.entry.name, cards.memory_bytes), []).append(node)
    return list(groups.values())


def _by_memory(nodes: Sequence[Node], site: Site) -> list[list[Node]]:
    groups: list[list[Node]] = []
    for node in sorted(nodes, key=site.memory_of, reverse=True):
        if groups and site.memory_of(node) >= SAME_MEMORY * site.memory_of(groups[-1][0]):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _bound(group: Sequence[Node], nodes: Sequence[Node]) -> Iterator[tuple[Sequence[Node], Mapping[str, str] | None]]:
    """The group with labels of its own; node by node where it has none in common."""
    others = [node for node in nodes if node not in group]
    if not others:
        yield group, {}
        return
    if labels := _label_of(group, others):
        yield group, labels
        return
    for node in group:
        yield [node], _label_of([node], [other for other in nodes if other is not node])


def _label_of(group: Sequence[Node], others: Sequence[Node]) -> Mapping[str, str] | None:
    """A label that all of the group and none of the others carry: its accelerator, else a person's, else Ray's."""
    common = {
        (key, value)
        for key, value in group[0].labels.items()
        if all(node.labels.get(key) == value for node in group)
        and all(node.labels.get(key) != value for node in others)
    }
    best = min(common, key=lambda pair: _choice_of_label(pair[0]), default=None)
    return {best[0]: best[1]} if best else None


def _choice_of_label(key: str) -> tuple[int, str]:
    """A node's id is its last: the node has another one when it starts again."""
    if key in ACCELERATOR_LABELS:
        return ACCELERATOR_LABELS.index(key), key
    return len(ACCELERATOR_LABELS) + (2 if key == NODE_ID else 1 if key.startswith(RAY) else 0), key


def _subsets(sorts: Sequence[Sort]) -> Iterator[tuple[Sort, ...]]:
    if len(sorts) <= MAX_SORTS:
        for size in range(1, len(sorts) + 1):
            yield from combinations(sorts, size)
        return
    for size in (1, 2, 3, len(sorts)):
        yield from (tuple(sorts[start : start + size]) for start in range(len(sorts) - size + 1))


def _depths(most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """How many stages each sort takes."""
    every = product(*(range(1, count + 1) for count in most)) if prod(most) <= MAX_WAYS else ()
    parts = (tuple(max(1, count // part) for count in most) for part in PARTS)
    for depths in dict.fromkeys(every or parts):
        if 2 <= sum(depths) <= MAX_STAGES:
            yield depths


def _gangs(
    spec: ModelSpec,
    site: Site,
    chosen: Sequence[Sort],
    depths: Sequence[int],
    tensor: int,
    slots: Mapping[str, int],
) -> Iterator[tuple[ModelSpec, GangShape]]:
    pipeline = sum(depths)
    apart = all(depth <= sort.spread(slots, tensor) for sort, depth in zip(chosen, depths, strict=True))
    parts = [[dict(sort.labels or {})] * depth for sort, depth in zip(chosen, depths, strict=True)]
    for ordered in (parts, parts[::-1]) if len(parts) > 1 else (parts,):
        bound = {"nodes": pipeline if apart else None, "stages": tuple(labels for part in ordered for labels in part)}
        split = SplitSpec(tensor=tensor, pipeline=pipeline)
        placed = {"split": split, "placement": spec.placement.model_copy(update=bound)}
        if len(parts) == 1 and _is_even(spec.model_copy(update={"split": split}), chosen[0], site):
            continue
        one = spec.model_copy(update=placed)
        shape = shape_gang(one, site.facts, site.nodes, site.platform)
        if not isinstance(shape, NoShape):
            yield one, shape


def _is_even(spec: ModelSpec, sort: Sort, site: Site) -> bool:
    """Whether the same number of ranks on each of some of the sort's nodes does."""
    return not isinstance(shape_gang(spec, site.facts, sort.nodes, site.platform), NoShape)
