"""Where a model is to run: the nodes, what is known of them, and what the ranks of a gang get there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.catalog.library import Library
from longboat.core.plan import GangShape, RankResources
from longboat.core.topology import Node
from longboat.planner.ground import Ground, find_ground, ground_by_stage
from longboat.planner.pack import Packing
from longboat.planner.predict.constants import Calibration
from longboat.planner.resources import matches, rank_resources
from longboat.spec.types.fleet import ModelSpec

__all__ = ("Site", "ground_of", "ground_on", "matching_nodes", "slots_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where it is to run. memory_bytes, accelerators: what nodes told, by node; platform: of the model's engine."""

    nodes: tuple[Node, ...]
    library: Library
    calibration: Calibration
    memory_bytes: Mapping[str, int]
    accelerators: Mapping[str, str]
    facts: ModelConfig | None = None
    platform: str = "cpu"

    def rank(self, spec: ModelSpec) -> RankResources:
        """What one worker rank of the model takes here."""
        return rank_resources(spec, self.platform)

    def memory_of(self, node: Node) -> int:
        """All memory of a node that engines may have; 0: nobody told."""
        return self.memory_bytes.get(node.node_id) or node.memory_bytes


def matching_nodes(spec: ModelSpec, site: Site) -> list[Node]:
    """Nodes that the model may be on."""
    return [node for node in site.nodes if matches(node, spec.placement.labels)]


def slots_of(node: Node, rank: RankResources) -> int:
    """Worker ranks that a node has CPUs and GPUs for."""
    counts = [int(node.num_cpus / rank.num_cpus + 1e-9)] if rank.num_cpus else []
    counts += [int(node.num_gpus / rank.num_gpus + 1e-9)] if rank.num_gpus else []
    return min(counts, default=0)


def ground_of(spec: ModelSpec, gang: GangShape, packing: Packing, site: Site) -> Ground:
    """What the gang's ranks get where ``packing`` puts them. Raises UserInputError as ``find_ground`` does."""
    ranks: Counter[str] = Counter()
    for nodes in packing.placed.get(spec.name, ()):
        for node in nodes:
            ranks[node] += gang.ranks_per_node
    if gang.stages:
        return ground_by_stage([_ground_of_stage(spec, gang, labels, ranks, site) for labels in gang.stages])
    if not ranks:
        ranks.update({node.node_id: gang.ranks_per_node for node in matching_nodes(spec, site)})
    return ground_on(ranks, gang.resources, site)


def _ground_of_stage(
    spec: ModelSpec, gang: GangShape, labels: Mapping[str, str], packed: Mapping[str, int], site: Site
) -> Ground:
    """The weakest of all nodes that the stage may get; all stages with its labels may come to lie on one of them."""
    together = gang.stages.count(labels) if gang.shares_nodes else 1
    nodes = [node for node in matching_nodes(spec, site) if matches(node, labels)]
    able = [node for node in nodes if slots_of(node, gang.resources) >= gang.tensor] or nodes
    ranks = {}
    for node in able:
        most = max(1, slots_of(node, gang.resources) // gang.tensor)
        ranks[node.node_id] = max(gang.tensor * min(together, most), packed.get(node.node_id, 0))
    return ground_on(ranks, gang.resources, site)


def ground_on(ranks_on: Mapping[str, int], rank: RankResources, site: Site) -> Ground:
    """What ranks get on these nodes (node → ranks there). Raises UserInputError as ``find_ground`` does."""
    return find_ground(
        ranks_on,
        site.nodes,
        rank,
        site.library,
        memory_bytes=site.memory_bytes,
        accelerators=site.accelerators,
    )
