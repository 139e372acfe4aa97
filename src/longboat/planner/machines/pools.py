"""Equal accelerators in equal nodes: what the search takes replicas from, and what the system does to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from longboat.catalog.entries import Accelerator
from longboat.planner.machines.cluster import Cards, Cluster, NodeKind
from longboat.planner.memory.split_shape import Card, card_of
from longboat.planner.predict.machine import Fabric, Machine, fabric_of, machine_of

__all__ = ("Pool", "pool_with", "pools_of", "system_notes")

GIB = 1024**3
PLATFORMS = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu", "apple": "metal", "cpu": "cpu", "other": "other"}
# Our estimates. Windows keeps memory of each card for the desktop; inside WSL2 cards do not reach each other directly,
# so that NCCL copies through memory; packets pass a virtual switch.
WINDOWS_CARD_BYTES = GIB
WINDOWS_BUS_BYTES_PER_S, WINDOWS_BUS_LATENCY_S = 8e9, 25e-6
WINDOWS_NETWORK_LATENCY_S = 100e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal accelerators, on nodes that may hold different numbers of them."""

    number: int
    kinds: tuple[int, ...]  # of its nodes, by position in the cluster; pools of the same kinds share nodes
    entry: Accelerator
    card: Card
    machine: Machine
    slots: tuple[int, ...]  # accelerators of each node
    bus: Fabric  # between accelerators of a node
    network: Fabric  # between nodes
    system: str = "linux"  # of the nodes (``wsl2``)
    memory_is_reported: bool = True  # False where the card's memory is the catalog's and not what the nodes reported

    @property
    def num_nodes(self) -> int:
        return len(self.slots)

    @property
    def cards_per_node(self) -> int:
        """Accelerators of the node that has the most."""
        return max(self.slots)

    @property
    def sort(self) -> tuple[object, ...]:
        """What plans on it alone depend on: the same for equal machines in other clusters."""
        return self.card, self.machine, self.bus, self.network, tuple(sorted(self.slots))

    def stages(self, tensor: int) -> int:
        """Return how many stages of ``tensor`` ranks all nodes together have room for."""
        most = self.cards_per_node
        if tensor <= most:
            return sum(slots // tensor for slots in self.slots)
        return self.slots.count(most) // ceil(tensor / most)

    @property
    def platform(self) -> str:
        return PLATFORMS[self.entry.vendor]

    @property
    def num_cards(self) -> int:
        return sum(self.slots)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Return the bandwidth of all memories together: a first measure of what the pool is good for."""
        return self.num_cards * self.machine.bandwidth_bytes_per_s


def pool_with(card: Card, machine: Machine, pools: Iterable[Pool]) -> Pool:
    """Return the pool of such accelerators. Numbers of pools do not tell: a plan may be of a part of the machines."""
    return next(pool for pool in pools if (pool.card, pool.machine) == (card, machine))


def pools_of(cluster: Cluster) -> tuple[Pool, ...]:
    """Return one pool for each sort of accelerator; those with other links or under another system are another sort.

    Their order, the quickest memory first, does not depend on that of the nodes.
    """
    found: dict[tuple[object, ...], Pool] = {}
    for index, kind in enumerate(cluster.kinds):
        for cards in kind.cards:
            pool = _pool(len(found), index, kind, cards)
            key = (pool.card, pool.bus, pool.network, pool.system, len(kind.cards) > 1 and index)
            known = found.get(key)
            if known is not None:
                pool = replace(known, kinds=(*known.kinds, index), slots=known.slots + pool.slots)
            found[key] = pool
    return tuple(replace(pool, number=number) for number, pool in enumerate(sorted(found.values(), key=_order)))


def _order(pool: Pool) -> tuple[object, ...]:
    links = (pool.bus.name, pool.bus.bandwidth_bytes_per_s, pool.network.name, pool.network.bandwidth_bytes_per_s)
    slots = tuple(sorted(pool.slots))
    return -pool.machine.bandwidth_bytes_per_s, -pool.card.usable_bytes, pool.card.name, links, pool.system, slots


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
        kinds=(index,),
        entry=cards.entry,
        card=card,
        machine=machine,
        slots=(cards.count,) * kind.count,
        bus=bus,
        network=network,
        system=kind.os,
    )


def system_notes(cluster: Cluster) -> tuple[str, ...]:
    """Return what planning assumes of systems other than Linux, in words."""
    if any(kind.os in ("wsl2", "windows") for kind in cluster.kinds):
        return (
            "Windows: 1 GiB of each card is the desktop's, cards of a node reach each other through memory (8 GB/s), "
            "and each message takes 0.1 ms longer; estimates, measure your own",
        )
    return ()
