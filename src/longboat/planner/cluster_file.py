"""From a cluster file, or from a running cluster's nodes, to the machines that are planned for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from longboat.catalog.library import Library
from longboat.core.errors import ClusterError, Problem, UserInputError
from longboat.core.topology import Node
from longboat.planner.cluster import Cards, Cluster, NodeKind, merged
from longboat.planner.cluster_text import Settings, find_os, find_runtime, parse_cards, parse_cluster, setting_of
from longboat.spec.cluster import ClusterFile, NodeSection

__all__ = ("cluster_of_file", "cluster_of_nodes")

# What Ray or whoever starts a node calls its accelerator.
ACCELERATOR_LABELS = ("longboat.accelerator", "ray.io/accelerator-type", "accelerator-type")
UNKNOWN_PROCESSOR = "Desktop 2ch DDR5-5600"
USUAL_PROCESSOR_CPUS = 16


def cluster_of_file(file: ClusterFile, library: Library, origin: str) -> Cluster:
    """Raises UserInputError with the path of each name that nobody knows."""
    problems: list[Problem] = []
    kinds: list[NodeKind] = []
    for index, section in enumerate(file.nodes):
        try:
            kinds.append(_kind(section, file, library))
        except UserInputError as error:
            problems += [replace(found, where=f"nodes[{index}]") for found in error.problems]
    runtime = ""
    try:
        runtime = find_runtime(file.runtime, library) if file.runtime else ""
    except UserInputError as error:
        problems += [replace(found, where="runtime") for found in error.problems]
    if problems:
        raise UserInputError(f"{origin}: {problems[0]}", hint=problems[0].hint, problems=tuple(problems))
    return Cluster(kinds=merged(kinds), runtime=runtime)


def _kind(section: NodeSection, file: ClusterFile, library: Library) -> NodeKind:
    links = ", ".join(f"{name}={value}" for name, value in (("net", section.net or file.net),) if value)
    network = parse_cluster(f"RTX 4090, {links}", library).kinds[0].network if links else None
    settings = Settings(
        network=network,
        bus=library.links.find(section.bus) if section.bus else None,
        os=find_os(section.os) if section.os else None,
    )
    return setting_of(parse_cards(section.cards, library), section.count, settings, library)


def cluster_of_nodes(nodes: Iterable[Node], library: Library, *, network: str = "") -> Cluster:
    """The machines that a running cluster reports. network: between them; ``""``: the usual one.

    Accelerators are known by labels of the nodes; a node without any counts as a common processor with its memory.

    Raises ClusterError where there is no node, or one has accelerators that nobody named.
    """
    settings = Settings(network=library.links.find(network) if network else None)
    kinds = [setting_of((_cards(node, library),), 1, settings, library) for node in nodes if node.alive]
    if not kinds:
        raise ClusterError("the cluster has no node", hint="longboat node start starts one")
    return Cluster(kinds=merged(kinds))


def _cards(node: Node, library: Library) -> Cards:
    if not node.num_gpus:
        entry = library.accelerators.find(UNKNOWN_PROCESSOR)
        share = min(1.0, node.num_cpus / USUAL_PROCESSOR_CPUS)
        slower = {dtype: value * share for dtype, value in entry.tflops.items()}
        entry = type(entry)(**{name: getattr(entry, name) for name in entry.__struct_fields__} | {"tflops": slower})
        return Cards(entry=entry, count=1, memory_bytes=node.memory_bytes or entry.memory_bytes)
    name = next((node.labels[label] for label in ACCELERATOR_LABELS if label in node.labels), "")
    if not name:
        raise ClusterError(
            f"{node.hostname or node.address} has {node.num_gpus:g} accelerators, and no label says which",
            hint='start it with --label longboat.accelerator="RTX 4090", or plan with --on "1x(2xRTX4090)"',
        )
    (cards,) = parse_cards(name, library)
    return replace(cards, count=int(node.num_gpus))
