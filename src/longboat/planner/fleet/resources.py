"""What ranks take and what nodes have, counted exactly (Ray counts resources in ten-thousandths)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longboat.core.plan import GangShape, RankResources
from longboat.core.sizes import readable_size
from longboat.core.topology import Node
from longboat.core.wanted import WantedModel

__all__ = (
    "Amount",
    "amount_of_node",
    "amount_per_node",
    "counted",
    "describe",
    "fits",
    "matches",
    "rank_resources",
    "shape_amount",
    "sum_of",
)

PARTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """CPUs and GPUs in ten-thousandths, memory in bytes; memory is None on a node that does not report it."""

    cpus: int
    gpus: int
    memory_bytes: int | None
    cards: tuple[int, ...] = ()  # of a node: what is left of each GPU, in ten-thousandths; of a need: empty

    def __mul__(self, count: int) -> Amount:
        memory = None if self.memory_bytes is None else self.memory_bytes * count
        return Amount(cpus=self.cpus * count, gpus=self.gpus * count, memory_bytes=memory)

    def __sub__(self, other: Amount) -> Amount:
        left = None if self.memory_bytes is None else self.memory_bytes - (other.memory_bytes or 0)
        cards = _cards_left(self.cards, other.gpus)
        return Amount(cpus=self.cpus - other.cpus, gpus=self.gpus - other.gpus, memory_bytes=left, cards=cards)


def fits(need: Amount, room: Amount) -> bool:
    """Return whether a need finds room; a node that does not report its memory counts as having enough."""
    enough_memory = room.memory_bytes is None or (need.memory_bytes or 0) <= room.memory_bytes
    return need.cpus <= room.cpus and need.gpus <= room.gpus and enough_memory and _cards_fit(need.gpus, room.cards)


def _cards_fit(gpus: int, cards: tuple[int, ...]) -> bool:
    """Return whether a node's cards have room: a part of a GPU is on one card, and more are whole cards."""
    if not gpus or not cards:
        return True
    if gpus < PARTS:
        return max(cards) >= gpus
    return cards.count(PARTS) * PARTS >= gpus


def _cards_left(cards: tuple[int, ...], gpus: int) -> tuple[int, ...]:
    """Return what is left of each card; a part comes from the fullest card that has room, as Ray takes it."""
    left = list(cards)
    while left and gpus > 0:
        part = min(gpus, PARTS)
        able = [free for free in left if free >= part]
        left[left.index(min(able, default=max(left)))] -= part
        gpus -= part
    return tuple(left)


def rank_resources(model: WantedModel, platform: str) -> RankResources:
    """Return what one worker rank takes. platform: ``cuda`` or ``cpu``, of the model's engine environment."""
    asked = model.rank
    automatic = 1.0 if platform == "cuda" and model.engine != "fake" else 0.0
    gpus = automatic if asked.num_gpus is None else asked.num_gpus
    return RankResources(num_cpus=asked.num_cpus, num_gpus=gpus, memory_bytes=asked.memory_bytes)


def amount_per_node(rank: RankResources, ranks_per_node: int) -> Amount:
    """Return what a gang takes on each of its nodes."""
    return Amount(
        cpus=round(rank.num_cpus * PARTS) * ranks_per_node,
        gpus=round(rank.num_gpus * PARTS) * ranks_per_node,
        memory_bytes=rank.memory_bytes * ranks_per_node,
    )


def amount_of_node(node: Node) -> Amount:
    """Return all that the scheduler has on a node, taken or not: an unchanged file gives an unchanged plan."""
    return Amount(
        cpus=round(node.num_cpus * PARTS),
        gpus=round(node.num_gpus * PARTS),
        memory_bytes=node.memory_bytes or None,
        cards=(PARTS,) * int(node.num_gpus),
    )


def sum_of(rooms: Sequence[Amount]) -> Amount:
    """Return everything together; memory is None where a node does not report its own."""
    known = [room.memory_bytes for room in rooms if room.memory_bytes is not None]
    return Amount(
        cpus=sum(room.cpus for room in rooms),
        gpus=sum(room.gpus for room in rooms),
        memory_bytes=sum(known) if len(known) == len(rooms) else None,
    )


def describe(amount: Amount) -> str:
    """Return ``2 CPUs, 1 GPU, 4GiB``; a zero other than that of CPUs is left out."""
    parts = [_count(amount.cpus, "CPU")]
    if amount.gpus:
        parts.append(_count(amount.gpus, "GPU"))
    if amount.memory_bytes:
        parts.append(readable_size(amount.memory_bytes))
    return ", ".join(parts)


def _count(parts: int, word: str) -> str:
    return f"{parts / PARTS:g} {word}" + ("" if parts == PARTS else "s")


def matches(node: Node, labels: Mapping[str, str]) -> bool:
    """Return whether a node is alive and carries all labels."""
    return node.alive and all(node.labels.get(key) == value for key, value in labels.items())


def shape_amount(shape: GangShape) -> Amount:
    """Return what a gang of this shape takes on each of its nodes."""
    return amount_per_node(shape.resources, shape.ranks_per_node)


def counted(count: int, noun: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"
