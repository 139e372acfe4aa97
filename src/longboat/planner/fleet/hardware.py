"""What the ranks of one replica compute on: the card, its speed and its links, on the nodes that they may get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from longboat.catalog.entries import Accelerator
from longboat.catalog.library import Library
from longboat.core.errors import UserInputError
from longboat.core.plan import RankResources
from longboat.core.topology import Node
from longboat.planner.machines.cluster import Cards
from longboat.planner.machines.cluster_live import ACCELERATOR_LABELS, named_processor
from longboat.planner.machines.cluster_text import Settings, bus_of, parse_cards, setting_of
from longboat.planner.memory.processor_part import processor_part
from longboat.planner.memory.split_shape import Card, card_of
from longboat.planner.predict.machine import Fabric, Machine, fabric_of, machine_of

__all__ = ("ReplicaHardware", "StageHardware", "accelerator_of", "find_hardware_of", "hardware_by_stage")

# Ranks of one machine meet through its own network stack (Gloo): an estimate.
BETWEEN_PROCESSES = "10GbE"
LABEL_HINT = "start the node with --label longboat.accelerator=RTX4090, or write numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHardware:
    """The hardware on which each rank of one stage computes."""

    card: Card
    machine: Machine
    bus: Fabric  # to the other ranks of the stage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHardware:
    """The hardware of one replica's ranks; where stages have their own, the figures are those of the weakest."""

    entry: Accelerator
    card: Card
    machine: Machine
    bus: Fabric  # within a node
    network: Fabric  # between nodes
    memory_is_reported: bool = True  # False where the card's memory is the catalog's and not what the nodes reported
    stages: tuple[StageHardware, ...] = ()  # where stages are bound to nodes

    def stage(self, number: int) -> StageHardware:
        """Return what the ranks of a stage compute on."""
        if self.stages:
            return self.stages[number]
        return StageHardware(card=self.card, machine=self.machine, bus=self.bus)


def accelerator_of(node: Node, found: Mapping[str, str]) -> tuple[str, str]:
    """Return a node's accelerator and the label that names it; else what the node names itself, and no label."""
    for label in ACCELERATOR_LABELS:
        if label in node.labels:
            return node.labels[label], label
    return found.get(node.node_id, ""), ""


def find_hardware_of(
    ranks_on: Mapping[str, int],
    nodes: Sequence[Node],
    rank: RankResources,
    library: Library,
    *,
    memory_bytes: Mapping[str, int],
    accelerators: Mapping[str, str],
) -> ReplicaHardware:
    """Return the weakest hardware that ranks get on the nodes that they are to be on.

    ranks_on: node → ranks of this model there; memory_bytes, accelerators: as the nodes reported them, by node

    A rank that takes a part of a card is given that part of its speed: the others may be busy. How much memory it
    takes is a setting of its engine.

    Raises UserInputError where an accelerator is not known.
    """
    used = [node for node in nodes if ranks_on.get(node.node_id)]
    if rank.num_gpus <= 0:
        return _on_processors(ranks_on, used, rank, library, memory_bytes)
    found = _on_accelerators(used, library, accelerators)
    return found if rank.num_gpus >= 1 else replace(found, machine=found.machine.part(rank.num_gpus))


def hardware_by_stage(stages: Sequence[ReplicaHardware]) -> ReplicaHardware:
    """Return what a gang gets whose stages each have their own hardware; between them the slowest network counts."""
    weakest = min(stages, key=lambda one: (one.card.usable_bytes, one.machine.bandwidth_bytes_per_s))
    return replace(
        weakest,
        network=min((one.network for one in stages), key=lambda link: link.bandwidth_bytes_per_s),
        memory_is_reported=all(one.memory_is_reported for one in stages),
        stages=tuple(StageHardware(card=one.card, machine=one.machine, bus=one.bus) for one in stages),
    )


def _on_processors(
    ranks_on: Mapping[str, int],
    nodes: Sequence[Node],
    rank: RankResources,
    library: Library,
    memory_bytes: Mapping[str, int],
) -> ReplicaHardware:
    parts = [_part_of(node, rank, library) for node in nodes] or [processor_part(library, rank.num_cpus)]
    entry = min(parts, key=lambda part: part.bandwidth_gb_s)
    reported = [(memory_bytes.get(node.node_id) or node.memory_bytes) // ranks_on[node.node_id] for node in nodes]
    each = min(reported, default=0) or entry.memory_bytes
    card = replace(card_of(entry, memory_bytes=each), usable_bytes=each)
    return _hardware(
        card, Cards(entry=entry, count=1, memory_bytes=each), library, is_told=bool(min(reported, default=0))
    )


def _part_of(node: Node, rank: RankResources, library: Library) -> Accelerator:
    """Return the part that a rank gets of the node's processor. Raises UserInputError where its label names none."""
    return processor_part(library, rank.num_cpus, of=named_processor(node, library), all_cpus=node.num_cpus)


def _on_accelerators(nodes: Sequence[Node], library: Library, accelerators: Mapping[str, str]) -> ReplicaHardware:
    names = {accelerator_of(node, accelerators)[0] for node in nodes}
    if "" in names:
        unknown = next(node for node in nodes if not accelerator_of(node, accelerators)[0])
        raise UserInputError(
            f"no label says which accelerators {unknown.hostname or unknown.address} has", hint=LABEL_HINT
        )
    found = [parse_cards(name, library)[0] for name in sorted(names)]
    weakest = min(found, key=lambda cards: (cards.memory_bytes, cards.entry.bandwidth_gb_s))
    card = card_of(weakest.entry, memory_bytes=weakest.memory_bytes)
    most = max(int(node.num_gpus) for node in nodes)
    return _hardware(card, replace(weakest, count=most), library, is_told=len(found) == 1)


def _hardware(card: Card, cards: Cards, library: Library, *, is_told: bool) -> ReplicaHardware:
    kind = setting_of((cards,), 1, Settings(), library)
    machine = replace(machine_of(cards.entry), memory_bytes=float(card.usable_bytes))
    bus = library.links.find(BETWEEN_PROCESSES) if cards.entry.kind == "cpu" else bus_of((cards,), library)
    return ReplicaHardware(
        entry=cards.entry,
        card=card,
        machine=machine,
        bus=fabric_of(bus),
        network=fabric_of(kind.network),
        memory_is_reported=is_told,
    )
