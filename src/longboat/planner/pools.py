"""Equal accelerators in equal nodes: what the search takes replicas from, and what the system does to them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longboat.catalog.entries import Accelerator
from longboat.planner.cluster import Cards, Cluster, NodeKind
from longboat.planner.predict.machine import Fabric, Machine, fabric_of, machine_of
from longboat.planner.split_shape import Card, card_of

__all__ = ("Pool", "pools_of", "system_notes")

GIB = 1024**3
PLATFORMS = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu", "apple": "metal", "cpu": "cpu", "other": "other"}
# Our estimates. Windows keeps memory of each card for the desktop; inside WSL2 cards do not reach each other directly,
# so that NCCL copies through memory; packets pass a virtual switch.
WINDOWS_CARD_BYTES = GIB
WINDOWS_BUS_BYTES_PER_S, WINDOWS_BUS_LATENCY_S = 8e9, 25e-6
WINDOWS_NETWORK_LATENCY_S = 100e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """number: of the pool; kind: of its nodes, by position in the cluster: pools of one kind share nodes.

    platform: what engines must support (``cuda``); system: of the nodes (``wsl2``)
    bus: between cards of a node; network: between nodes
    """

    number: int
    kind: int
    entry: Accelerator
    card: Card
    machine: Machine
    num_nodes: int
    cards_per_node: int
    bus: Fabric
    network: Fabric
    system: str = "linux"

    @property
    def platform(self) -> str:
        return PLATFORMS[self.entry.vendor]

    @property
    def num_cards(self) -> int:
        return self.num_nodes * self.cards_per_node

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Of all memories together: a first measure of what the pool is good for."""
        return self.num_cards * self.machine.bandwidth_bytes_per_s


def pools_of(cluster: Cluster) -> tuple[Pool, ...]:
    """One pool for each sort of accelerator of each kind of node."""
    found = [(index, kind, cards) for index, kind in enumerate(cluster.kinds) for cards in kind.cards]
    return tuple(_pool(number, index, kind, cards) for number, (index, kind, cards) in enumerate(found))


def _pool(number: int, index: int, kind: NodeKind, cards: Cards) -> Pool:
    card = card_of(cards.entry, memory_bytes=cards.memory_bytes)
    machine = replace(machine_of(cards.entry), memory_bytes=float(card.usable_bytes))
    bus, network = fabric_of(kind.bus), fabric_of(kind.network)
    if kind.os in ("wsl2", "windows"):
        card = replace(card, usable_bytes=max(0, card.usable_bytes - WINDOWS_CARD_BYTES))
        bus = replace(
            bus,
            latency_s=max(bus.latency_s, WINDOWS_BUS_LATENCY_S),
            bandwidth_bytes_per_s=min(bus.bandwidth_bytes_per_s, WINDOWS_BUS_BYTES_PER_S),
        )
        network = replace(network, latency_s=network.latency_s + WINDOWS_NETWORK_LATENCY_S)
    return Pool(
        number=number,
        kind=index,
        entry=cards.entry,
        card=card,
        machine=machine,
        num_nodes=kind.count,
        cards_per_node=cards.count,
        bus=bus,
        network=network,
        system=kind.os,
    )


def system_notes(cluster: Cluster) -> tuple[str, ...]:
    """What planning assumes of systems other than Linux, in words."""
    if any(kind.os in ("wsl2", "windows") for kind in cluster.kinds):
        return (
            "Windows: 1 GiB of each card is the desktop's, cards of a node reach each other through memory (8 GB/s), "
            "and each message takes 0.1 ms longer; estimates, measure your own",
        )
    return ()
