"""The nodes of a cluster as the search takes them: equal cards together, with the labels that name their nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from longboat.core.topology import Node
from longboat.planner.fleet.hardware import ReplicaHardware, accelerator_of
from longboat.planner.fleet.placement_context import PlacementContext, slots_of
from longboat.planner.machines.cluster_live import ACCELERATOR_LABELS, PROCESSOR_LABEL
from longboat.planner.machines.cluster_text import parse_cards
from longboat.planner.machines.pools import Pool
from longboat.planner.search.layouts import REPLICAS

__all__ = ("NODE_ID", "NodePools", "node_pools", "why_unmixed", "why_weakest")

NODE_ID = "ray.io/node-id"
RAY = "ray.io/"
# Nodes whose memory is within this of the largest of their sort are of one sort.
SAME_MEMORY = 0.9
Label = tuple[str, str]
Labels = Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePools:
    """One way to see the nodes: pools for the search, and the labels by which the nodes of each pool are known."""

    pools: tuple[Pool, ...]
    labels: tuple[Mapping[str, str], ...]
    equal: bool = True  # whether replicas on one pool are tried
    mixed: bool = False  # whether replicas over several pools are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sort:
    """The nodes whose ranks get the same card, or about the same memory."""

    nodes: tuple[Node, ...]
    labels: Labels  # empty where there is no other sort; None where no label distinguishes them


def node_pools(context: PlacementContext) -> list[NodePools]:
    """Return every way to see the nodes that is worth a search.

    On processors the memory of a node is divided by its ranks: there is one way for each number of them.

    Raises UserInputError where an accelerator is not in the catalog, or has no name.
    """
    rank = context.rank
    nodes = [node for node in context.nodes() if slots_of(node, rank)]
    if not nodes:
        return []
    most = max(slots_of(node, rank) for node in nodes)
    counts = [most] if rank.num_gpus else [count for count in REPLICAS if count < most] + [most]
    sorts = _sorts(context)
    unmixed = _why_unmixed(context, sorts)
    return [found for count in counts for found in _ways(context, nodes, sorts, count, unmixed)]


def _ways(
    context: PlacementContext, nodes: Sequence[Node], sorts: Sequence[_Sort], count: int, unmixed: str
) -> Iterator[NodePools]:
    """Yield each sort alone where labels distinguish their hardware; all nodes together where they do not.

    unmixed: why stages of one replica stay on one sort
    """
    labelled = [(sort.nodes, sort.labels) for sort in sorts if sort.labels is not None]
    is_told = len(labelled) == len(sorts) > 0
    by_id = any(NODE_ID in labels for _, labels in labelled)
    by_hardware = bool(context.rank.num_gpus) or any(PROCESSOR_LABEL in labels for _, labels in labelled)
    apart = by_hardware and is_told and not by_id
    if not apart:
        pool = _pool(context, nodes, 0, count)
        yield NodePools(pools=(pool,), labels=({},))
    if is_told and (apart or len(labelled) > 1):
        mixed = len(labelled) > 1 and context.wanted.split_is_open and not unmixed
        pools = tuple(_pool(context, group, number, count) for number, (group, _) in enumerate(labelled))
        if apart or mixed:
            yield NodePools(pools=pools, labels=tuple(labels for _, labels in labelled), equal=apart, mixed=mixed)


def _pool(context: PlacementContext, nodes: Sequence[Node], number: int, count: int) -> Pool:
    """Return the pool of these nodes, with at most ``count`` ranks on each of them."""
    slots = tuple(min(count, slots_of(node, context.rank)) for node in nodes)
    found = _hardware(context, nodes, count)
    return Pool(
        number=number,
        kinds=(number,),
        entry=found.entry,
        card=found.card,
        machine=context.machine(found.machine),
        slots=slots,
        bus=found.bus,
        network=found.network,
        memory_is_reported=found.memory_is_reported,
    )


def _hardware(context: PlacementContext, nodes: Sequence[Node], count: int) -> ReplicaHardware:
    """Return what a rank gets at best: of cards the weakest counts, of processors the node with the most memory."""
    if context.rank.num_gpus:
        return context.hardware({node.node_id: 1 for node in nodes})
    largest = max(nodes, key=lambda node: context.memory_of(node) // min(count, slots_of(node, context.rank)))
    return context.hardware({largest.node_id: min(count, slots_of(largest, context.rank))})


def why_unmixed(context: PlacementContext) -> str:
    """Return why stages are not put on different sorts of nodes, though there are several; ``""`` where they may be."""
    return _why_unmixed(context, _sorts(context)) if context.wanted.split_is_open else ""


def _why_unmixed(context: PlacementContext, sorts: Sequence[_Sort]) -> str:
    wanted = context.wanted
    if not wanted.split_is_open or len(sorts) < 2:
        return ""
    if wanted.placement.stages:
        return "placement.stages binds them"
    if wanted.placement.nodes is not None:
        return f"placement.nodes is {wanted.placement.nodes}"
    unbound = [node for sort in sorts if sort.labels is None for node in sort.nodes]
    if unbound:
        return f"no label tells {unbound[0].hostname or unbound[0].address} from nodes of another sort"
    return ""


def why_weakest(context: PlacementContext) -> str:
    """Return why the weakest of several sorts of cards counts for all; ``""`` where one sort, or a label, is enough.

    Replicas cannot be kept to the better cards: a node has another id when it starts again.
    """
    sorts = _sorts(context) if context.rank.num_gpus else []
    if all(sort.labels is not None and NODE_ID not in sort.labels for sort in sorts):
        return ""
    names = [accelerator_of(sort.nodes[0], context.inputs.accelerators)[0] for sort in sorts]
    cards = list(dict.fromkeys(parse_cards(name, context.inputs.library)[0].entry.name for name in names))
    sort = (
        f"nodes with {', '.join(cards[:-1])} from those with {cards[-1]}" if cards[1:] else f"sorts of {cards[0]} apart"
    )
    return f"no label tells {sort}, so the weakest card counts"


def _sorts(context: PlacementContext) -> list[_Sort]:
    """Return the nodes that the model may be on, equal ones together; none where an accelerator has no name."""
    rank = context.rank
    nodes = [node for node in context.nodes() if slots_of(node, rank)]
    groups = _by_card(nodes, context) if rank.num_gpus else _by_processor(nodes, context)
    carriers = _carriers(nodes)
    return [
        _Sort(nodes=tuple(part), labels=labels)
        for group in groups
        for part, labels in _bound(group, carriers, len(nodes))
    ]


def _by_card(nodes: Sequence[Node], context: PlacementContext) -> list[list[Node]]:
    groups: dict[tuple[str, int], list[Node]] = {}
    for node in nodes:
        name = accelerator_of(node, context.inputs.accelerators)[0]
        if not name:
            return []
        cards = parse_cards(name, context.inputs.library)[0]
        groups.setdefault((cards.entry.name, cards.memory_bytes), []).append(node)
    return list(groups.values())


def _by_processor(nodes: Sequence[Node], context: PlacementContext) -> list[list[Node]]:
    """Return the nodes by their processors, as far as labels name them, and by their memory."""
    groups: dict[tuple[str, float], list[Node]] = {}
    for node in nodes:
        name = node.labels.get(PROCESSOR_LABEL, "")
        groups.setdefault((name, node.num_cpus if name else 0.0), []).append(node)
    return [part for group in groups.values() for part in _by_memory(group, context)]


def _by_memory(nodes: Sequence[Node], context: PlacementContext) -> list[list[Node]]:
    groups: list[list[Node]] = []
    for node in sorted(nodes, key=context.memory_of, reverse=True):
        if groups and context.memory_of(node) >= SAME_MEMORY * context.memory_of(groups[-1][0]):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _bound(
    group: Sequence[Node], carriers: Mapping[Label, int], num_nodes: int
) -> Iterator[tuple[Sequence[Node], Mapping[str, str] | None]]:
    """Yield the group with labels of its own; node by node where it has none in common.

    carriers: of each label, among all ``num_nodes`` nodes
    """
    if len(group) == num_nodes:
        yield group, {}
        return
    if labels := _label_of(group, carriers):
        yield group, labels
        return
    for node in group:
        yield [node], _label_of([node], carriers)


def _label_of(group: Sequence[Node], carriers: Mapping[Label, int]) -> Mapping[str, str] | None:
    """Return a label that all of the group and no others carry: its accelerator, else a person's, else Ray's."""
    within = _carriers(group)
    own = (label for label, count in within.items() if count == len(group) == carriers[label])
    best = min(own, key=lambda label: _choice_of_label(label[0]), default=None)
    return {best[0]: best[1]} if best else None


def _carriers(nodes: Iterable[Node]) -> Mapping[Label, int]:
    """Return how many nodes carry each label with each value."""
    return Counter(label for node in nodes for label in node.labels.items())


def _choice_of_label(key: str) -> tuple[int, str]:
    """Return a key that puts a node's id last: the node has another one when it starts again."""
    hardware = (*ACCELERATOR_LABELS, PROCESSOR_LABEL)
    if key in hardware:
        return hardware.index(key), key
    return len(hardware) + (2 if key == NODE_ID else 1 if key.startswith(RAY) else 0), key
