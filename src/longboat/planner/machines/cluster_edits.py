"""What-if: the same machines with some added, removed or swapped, with another network, system or engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longboat.catalog.library import Library
from longboat.catalog.names import find_name, nearest_names
from longboat.core.errors import UserInputError
from longboat.planner.machines.cluster import Cards, Cluster, NodeKind, merged
from longboat.planner.machines.cluster_text import (
    Settings,
    bus_of,
    check_number,
    find_engine,
    find_os,
    parse_cards,
    parse_cluster,
    parse_nodes,
    parse_one,
    setting_of,
)

__all__ = ("Edits", "edited")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Changes in the words of the command line. Swaps come first, then removals, then additions."""

    add: tuple[str, ...] = ()  # nodes as in a cluster's text
    remove: tuple[str, ...] = ()  # a node's number, nodes in brackets, or accelerators
    swap: tuple[str, ...] = ()  # ``1:A4000`` all accelerators of node 1, or ``A5000:A4000`` all of one name
    network: str = ""
    os: str = ""
    engine: str = ""

    def __bool__(self) -> bool:
        return any((self.add, self.remove, self.swap, self.network, self.os, self.engine))


def edited(cluster: Cluster, edits: Edits, library: Library) -> Cluster:
    """Return the changed machines. Raises UserInputError where a change names nothing that is there."""
    for text in edits.swap:
        cluster = _swapped(cluster, text, library)
    for text in edits.remove:
        cluster = _without(cluster, text, library)
    for text in edits.add:
        cluster = _with(cluster, text, library)
    if edits.network:
        network = parse_cluster(f"RTX 4090, net={edits.network}", library).kinds[0].network
        cluster = replace(cluster, kinds=merged(replace(kind, network=network) for kind in cluster.kinds))
    if edits.os:
        os = find_os(edits.os)
        settings = Settings(os=os)
        for kind in cluster.kinds:
            setting_of(kind.cards, 1, settings, library)
        cluster = replace(cluster, kinds=merged(replace(kind, os=os) for kind in cluster.kinds))
    if edits.engine:
        cluster = replace(cluster, engine=find_engine(edits.engine, library))
    return cluster


def _with(cluster: Cluster, text: str, library: Library) -> Cluster:
    """Return the machines and more nodes, on the network of those that are there."""
    first = cluster.kinds[0]
    settings = Settings(network=first.network, os=first.os if first.os == "wsl2" else None)
    return replace(cluster, kinds=merged([*cluster.kinds, *parse_nodes(text, library, settings)]))


def _without(cluster: Cluster, text: str, library: Library) -> Cluster:
    nodes = list(cluster.nodes())
    if (number := _node_number(text, nodes)) is not None:
        left = [*nodes[: number - 1], *nodes[number:]]
    elif "(" in text:
        left = nodes
        for wanted in parse_nodes(text, library, Settings()):
            left = _without_nodes(left, wanted, text)
    elif text.strip().isdecimal() and find_name(text, library.accelerators.known) is None:
        raise _not_there(f"there is no node {text.strip()}", nodes)
    else:
        left = nodes
        for cards in parse_cards(text, library):
            left = _without_cards(left, cards, text, library)
    if not left:
        raise UserInputError(f"without {text} no machine is left", hint="remove fewer of them")
    return replace(cluster, kinds=merged(left))


def _without_nodes(nodes: list[NodeKind], wanted: NodeKind, text: str) -> list[NodeKind]:
    alike = [index for index, node in enumerate(nodes) if node.key[0] == wanted.key[0]]
    if len(alike) < wanted.count:
        raise _not_there(f"{len(alike)} nodes are as {text}", nodes)
    gone = set(alike[len(alike) - wanted.count :])
    return [node for index, node in enumerate(nodes) if index not in gone]


def _without_cards(nodes: list[NodeKind], wanted: Cards, text: str, library: Library) -> list[NodeKind]:
    """Take cards from the last nodes first; a node without accelerators goes."""
    missing, left = wanted.count, []
    for node in reversed(nodes):
        cards = []
        for one in node.cards:
            taken = min(missing, one.count) if one.entry.name == wanted.entry.name else 0
            missing -= taken
            cards.append(replace(one, count=one.count - taken))
        kept = tuple(one for one in cards if one.count)
        if kept:
            left.append(node if kept == node.cards else replace(node, cards=kept, bus=bus_of(kept, library)))
    if missing:
        raise _not_there(f"there are {wanted.count - missing} of {text}", nodes)
    return left[::-1]


def _swapped(cluster: Cluster, text: str, library: Library) -> Cluster:
    old, mark, new = text.partition(":")
    if not mark or not new.strip():
        raise UserInputError(f"{text!r} does not say what becomes what", hint="write --swap 1:A4000 or A5000:A4000")
    fresh = parse_one(new.strip(), library)
    nodes = list(cluster.nodes())
    number = _node_number(old, nodes)
    gone = None if number is not None else parse_one(old.strip(), library)
    changed = [
        _node_with(node, gone, fresh, library) if number in (None, index) else node
        for index, node in enumerate(nodes, start=1)
    ]
    if gone is not None and all(one is other for one, other in zip(changed, nodes, strict=True)):
        raise _not_there(f"no node has {gone.entry.name}", nodes)
    return replace(cluster, kinds=merged(changed))


def _node_with(node: NodeKind, gone: Cards | None, fresh: Cards, library: Library) -> NodeKind:
    """Return the node with other cards. gone: what is replaced, None: all; as many as before, or as the text says."""
    if gone is not None and all(one.entry.name != gone.entry.name for one in node.cards):
        return node
    kept = [one for one in node.cards if gone is not None and one.entry.name != gone.entry.name]
    old = sum(one.count for one in node.cards) - sum(one.count for one in kept)
    cards = (*kept, replace(fresh, count=fresh.count if fresh.count > 1 else old))
    check_number(cards, ", ".join(f"{one.count} x {one.entry.name}" for one in cards))
    return replace(node, cards=cards, bus=bus_of(cards, library))


def _node_number(text: str, nodes: list[NodeKind]) -> int | None:
    """Return a node's number; ``4090`` is a card where there are fewer nodes."""
    plain = text.strip()
    return int(plain) if plain.isdecimal() and 1 <= int(plain) <= len(nodes) else None


def _not_there(what: str, nodes: list[NodeKind]) -> UserInputError:
    names = dict.fromkeys(one.entry.name for node in nodes for one in node.cards)
    near = nearest_names(what.rsplit(" ", 1)[-1], names) or tuple(names)
    return UserInputError(what, hint=f"the machines have {', '.join(near)}; nodes are numbered 1 to {len(nodes)}")
