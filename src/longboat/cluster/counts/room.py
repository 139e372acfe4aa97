"""What replicas take of nodes, what nodes have, and how many nodes are missing. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ("missing_label", "missing_nodes", "room_of", "taken_by")

KINDS = ("GPU", "CPU")
Bundle = Mapping[str, float]
Labels = Mapping[str, str]


def taken_by(bundles: Sequence[Bundle]) -> dict[str, float]:
    """Return what one replica takes of the scarcest kind of resource: its accelerators, or CPUs where it has none."""
    for kind in KINDS:
        if total := sum(bundle.get(kind, 0.0) for bundle in bundles):
            return {kind: total}
    return {}


def room_of(nodes: Sequence[Bundle]) -> dict[str, float]:
    """Return what all nodes have of each kind, in use or not."""
    return {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in KINDS}


def missing_nodes(num_replicas: int, bundles: Sequence[Bundle], nodes: Sequence[Bundle]) -> int:
    """Return how many more nodes, of the largest kind that there is, ``num_replicas`` need; 0: that is not known."""
    kind = next(iter(taken_by(bundles)), "")
    largest = max((node.get(kind, 0.0) for node in nodes), default=0.0)
    most = max((bundle.get(kind, 0.0) for bundle in bundles), default=0.0)
    here = math.floor(largest / most + 1e-9) if most else 0
    return math.ceil(num_replicas * len(bundles) / here) if here else 0


def missing_label(bundles: Sequence[Labels], nodes: Sequence[Labels]) -> str:
    """Return a label, as KEY=VALUE, that one of a replica's nodes must carry and no node does; empty: there is none."""
    wanted = [(key, value) for labels in bundles for key, value in labels.items()]
    return next((f"{key}={value}" for key, value in wanted if all(node.get(key) != value for node in nodes)), "")
