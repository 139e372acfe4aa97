"""From the nodes of a running cluster to the machines that are planned for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from longboat.catalog.entries import Accelerator
from longboat.catalog.library import Library
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.topology import Node
from longboat.planner.machines.cluster import Cards, Cluster, merged
from longboat.planner.machines.cluster_text import Settings, parse_one, setting_of
from longboat.planner.memory.processor_part import USUAL_PROCESSOR, USUAL_PROCESSOR_CPUS

__all__ = ("ACCELERATOR_LABELS", "PROCESSOR_LABEL", "cluster_of_nodes", "named_processor")

# Labels in which Ray, or the user who starts a node, names its accelerator.
ACCELERATOR_LABELS = ("longboat.accelerator", "ray.io/accelerator-type", "accelerator-type")
# A label in which the user who starts a node names its processor, as the catalog does.
PROCESSOR_LABEL = "longboat.processor"


def cluster_of_nodes(nodes: Iterable[Node], library: Library, *, network: str = "") -> Cluster:
    """Return the machines that a running cluster reports. network: between them; ``""``: the usual one.

    Accelerators and processors are known by labels of the nodes; a node without any counts as a common processor with
    its memory.

    Raises ClusterError where there is no node, or one has accelerators without a name.
    """
    settings = Settings(network=library.links.find(network) if network else None)
    kinds = [setting_of((_cards(node, library),), 1, settings, library) for node in nodes if node.alive]
    if not kinds:
        raise ClusterError("the cluster has no node", hint="longboat node start starts one")
    return Cluster(kinds=merged(kinds))


def _cards(node: Node, library: Library) -> Cards:
    if not node.num_gpus and (entry := named_processor(node, library)) is not None:
        return Cards(entry=entry, count=1, memory_bytes=node.memory_bytes or entry.memory_bytes)
    if not node.num_gpus:
        entry = library.accelerators.find(USUAL_PROCESSOR)
        share = min(1.0, node.num_cpus / USUAL_PROCESSOR_CPUS)
        slower = {dtype: value * share for dtype, value in entry.tflops.items()}
        entry = type(entry)(**{name: getattr(entry, name) for name in entry.__struct_fields__} | {"tflops": slower})
        return Cards(entry=entry, count=1, memory_bytes=node.memory_bytes or entry.memory_bytes)
    name = next((node.labels[label] for label in ACCELERATOR_LABELS if label in node.labels), "")
    if not name:
        raise ClusterError(
            f"{node.hostname or node.address} has {node.num_gpus:g} accelerators, and no label says which",
            hint='start it with --label longboat.accelerator=RTX4090, or plan with --on "1x(2xRTX4090)"',
        )
    return replace(parse_one(name, library), count=int(node.num_gpus))


def named_processor(node: Node, library: Library) -> Accelerator | None:
    """Return the processor that the node's label names; None where it has none.

    Raises UserInputError where the catalog lacks it, or it is an accelerator.
    """
    if not (name := node.labels.get(PROCESSOR_LABEL, "")):
        return None
    entry = library.accelerators.find(name)
    if entry.kind != "cpu":
        where = node.hostname or node.address
        raise UserInputError(
            f"the label {PROCESSOR_LABEL}={name} of {where} names an accelerator, not a processor",
            hint="longboat plan list cards names the processors",
        )
    return entry
