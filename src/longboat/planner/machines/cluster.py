"""The machines that are planned for: kinds of equal nodes, what computes in them, and the links between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from longboat.catalog.entries import Accelerator, Link

__all__ = ("OS_NAMES", "Cards", "Cluster", "NodeKind", "OsName", "merged")

OsName = Literal["linux", "wsl2", "windows", "macos"]
OS_NAMES: tuple[OsName, ...] = ("linux", "wsl2", "windows", "macos")
GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """Equal accelerators of one node."""

    entry: Accelerator
    count: int
    memory_bytes: int  # of one

    @property
    def title(self) -> str:
        """``2 x RTX 4090`` or ``RTX 4090``, with the memory where it is not the catalog's."""
        other = self.memory_bytes != self.entry.memory_bytes
        memory = f" {self.memory_bytes / GIB:.0f} GiB" if other else ""
        return f"{f'{self.count} x ' if self.count > 1 else ''}{self.entry.name}{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """``count`` equal nodes."""

    count: int
    cards: tuple[Cards, ...]
    bus: Link  # between the accelerators of one node
    network: Link  # by which the node reaches others
    os: OsName = "linux"

    @property
    def num_cards(self) -> int:
        """Accelerators of one node."""
        return sum(cards.count for cards in self.cards)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for nodes that are alike."""
        cards = tuple((cards.entry.name, cards.count, cards.memory_bytes) for cards in self.cards)
        return cards, self.bus.name, self.network.name, self.os

    @property
    def title(self) -> str:
        """The accelerators of one node."""
        return " + ".join(cards.title for cards in self.cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All nodes, equal ones together."""

    kinds: tuple[NodeKind, ...]
    engine: str = ""  # that the user asks for; empty: the planner chooses

    @property
    def num_nodes(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def num_cards(self) -> int:
        return sum(kind.count * kind.num_cards for kind in self.kinds)

    @property
    def title(self) -> str:
        """The text that ``--on`` takes."""
        nodes = " + ".join(_counted(kind) for kind in self.kinds)
        networks = dict.fromkeys(kind.network.name for kind in self.kinds) if self.num_nodes > 1 else ()
        systems = dict.fromkeys(kind.os for kind in self.kinds if kind.os in ("wsl2", "windows"))
        settings = [f"net={name}" for name in networks] + [f"os={name}" for name in systems]
        settings += [f"engine={self.engine}"] if self.engine else []
        return ", ".join([nodes, *settings])

    def nodes(self) -> Iterator[NodeKind]:
        """Yield each node as a kind of one, in order; they are numbered from 1."""
        for kind in self.kinds:
            yield from [replace(kind, count=1)] * kind.count


def _counted(kind: NodeKind) -> str:
    """Return the kind in words, with brackets where reading it again needs them."""
    first = kind.cards[0]
    if kind.count == 1 and len(kind.cards) == 1 and (first.count == 1 or first.entry.kind == "gpu"):
        return kind.title
    return f"{f'{kind.count} x ' if kind.count > 1 else ''}({kind.title})"


def merged(nodes: Iterable[NodeKind]) -> tuple[NodeKind, ...]:
    """Return kinds with equal nodes counted together, in the order in which they come first."""
    found: dict[tuple[object, ...], NodeKind] = {}
    for kind in nodes:
        known = found.get(kind.key)
        found[kind.key] = replace(kind, count=kind.count + (known.count if known else 0))
    return tuple(kind for kind in found.values() if kind.count)
