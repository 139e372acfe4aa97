"""Machines that are only described (``--on``), as the nodes that a fleet file is tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longboat.catalog.library import Library
from longboat.cli.plan.planning import machines_of
from longboat.cluster.preflight.adapters import find_adapter
from longboat.cluster.preflight.checks import EngineFinding, NodeFindings, PathFinding, PreflightRequest, inspect_node
from longboat.core.topology import Node
from longboat.engines.registry import adapter_for
from longboat.planner.machines.cluster import Cards, NodeKind
from longboat.planner.machines.cluster_live import ACCELERATOR_LABELS

__all__ = ("DescribedNodes", "described_nodes")

CPUS_PER_CARD = 16
CPUS_OF_A_PROCESSOR = 16
FILES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedNodes:
    """Nodes that exist in words only, and what each of them would answer."""

    title: str
    nodes: tuple[Node, ...]
    inspect: Callable[[Sequence[str], PreflightRequest], Mapping[str, Any]]


def described_nodes(on: str, library: Library) -> DescribedNodes:
    """Return the nodes of a text or of a cluster file. Raises UserInputError for what names no machines."""
    cluster = machines_of(on, library)
    kinds = list(_kinds_of_file(on, library)) if Path(on).suffix in FILES else [(kind, {}, 0) for kind in cluster.kinds]
    nodes: list[Node] = []
    cards: dict[str, tuple[Cards, ...]] = {}
    for kind, labels, cpus in kinds:
        for _ in range(kind.count):
            node = _node(kind, len(nodes) + 1, labels, cpus)
            nodes.append(node)
            cards[node.node_id] = kind.cards

    def inspect(node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        return {node_id: _findings(node_id, cards[node_id], request) for node_id in node_ids}

    return DescribedNodes(title=cluster.title, nodes=tuple(nodes), inspect=inspect)


def _kinds_of_file(on: str, library: Library) -> Iterator[tuple[NodeKind, dict[str, str], int]]:
    """Yield kinds of nodes with the labels and the CPUs that a cluster file gives them."""
    from longboat.cli.plan.plan_cluster_file import cluster_of_file
    from longboat.spec.files.cluster_file import load_cluster_file

    file = load_cluster_file(Path(on).read_text(encoding="utf-8"), on)
    for section in file.nodes:
        (kind,) = cluster_of_file(file.model_copy(update={"nodes": (section,)}), library, on).kinds
        yield kind, section.labels, section.cpus


def _node(kind: NodeKind, number: int, labels: Mapping[str, str], cpus: int) -> Node:
    """Return one node; where a description names no CPUs, it has enough for one process a card."""
    gpus = sum(cards.count for cards in kind.cards if cards.entry.kind != "cpu")
    processors = sum(cards.count for cards in kind.cards if cards.entry.kind == "cpu")
    return Node(
        node_id=f"described-{number}",
        address=f"node {number}",
        hostname=f"node {number} ({kind.title})",
        num_cpus=float(cpus or max(gpus * CPUS_PER_CARD, processors * CPUS_OF_A_PROCESSOR)),
        num_gpus=float(gpus),
        memory_bytes=_host_memory(kind.cards),
        labels={**_named(kind.cards), **labels} if not set(ACCELERATOR_LABELS) & set(labels) else labels,
        is_head=number == 1,
    )


def _named(cards: Sequence[Cards]) -> dict[str, str]:
    """Return the label by which a node that runs says which accelerators it has; none for processors."""
    name = _accelerator(cards).replace(" ", "-")  # a label has no spaces
    return {ACCELERATOR_LABELS[0]: name} if name else {}


def _accelerator(cards: Sequence[Cards]) -> str:
    """Return the name of the weakest accelerators; ``""`` where there are none."""
    gpus = [one for one in cards if one.entry.kind != "cpu"]
    weakest = min(gpus, key=lambda one: one.memory_bytes, default=None)
    return weakest.title.rpartition(" x ")[2] if weakest is not None else ""


def _host_memory(cards: Sequence[Cards]) -> int:
    """Return the memory of the processors; 0, which is unknown, beside accelerators."""
    return sum(one.count * one.memory_bytes for one in cards if one.entry.kind == "cpu")


def _engine(kind: str, has_cards: bool) -> EngineFinding:
    """Return the environment of an engine: some have none for cards, and take none."""
    recipe = adapter_for(kind).recipe
    on_cards = has_cards and (recipe is None or "cuda" in recipe.distributions)
    return EngineFinding(platform="cuda" if on_cards else "cpu")


def _findings(node_id: str, cards: Sequence[Cards], request: PreflightRequest) -> NodeFindings:
    """Return what a node would say on which everything is installed; folders are looked at where they are here."""
    name = _accelerator(cards)
    here = inspect_node(PreflightRequest(paths=request.paths, engines={}, gateway=None))
    return NodeFindings(
        hostname=node_id,
        paths={
            **{path: found if found.exists else PathFinding(exists=True) for path, found in here.paths.items()},
            **dict.fromkeys(request.fetched, PathFinding(exists=True)),
        },
        engines={model: _engine(one.kind, bool(name)) for model, one in request.engines.items()},
        memory_bytes=_host_memory(cards),
        accelerator=name,
        adapters={path: find_adapter(path) for path in request.adapters if Path(path).is_dir()},
    )
