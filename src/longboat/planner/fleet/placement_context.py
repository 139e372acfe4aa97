"""Where one model is to run: the nodes, what is known of them, and what the ranks of a gang get there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from longboat.core.plan import EngineMemory, GangShape, RankResources
from longboat.core.topology import Node
from longboat.core.wanted import WantedModel
from longboat.planner.fleet.hardware import ReplicaHardware, find_hardware_of, hardware_by_stage
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.fleet.pack import Packing
from longboat.planner.fleet.place import NoShape, shape_gang
from longboat.planner.fleet.resources import matches, rank_resources
from longboat.planner.memory.split_shape import EngineKind
from longboat.planner.predict.machine import LOOPBACK, Machine, machine_for
from longboat.planner.search.layouts import Layout
from longboat.planner.search.partition import Place

__all__ = ("PlacementContext", "slots_of")


@dataclass(frozen=True, slots=True)
class PlacementContext:
    """One wanted model on the nodes of a cluster."""

    wanted: WantedModel
    inputs: PlannerInputs

    @property
    def settings(self) -> EngineMemory | None:
        """What the settings of the model's engine say of memory; None where they are not known."""
        return self.inputs.memory.get(self.wanted.name)

    @property
    def engine(self) -> EngineKind:
        """The engine whose rules of memory and time hold; vLLM's where the model's own are not known."""
        return next((kind for kind in get_args(EngineKind) if kind == self.wanted.engine), "vllm")

    @property
    def divides_experts(self) -> bool:
        """Whether the planner may divide whole experts, and requests besides, by itself: engines do so on GPUs."""
        return self.wanted.splits.experts and self.platform != "cpu"

    @property
    def platform(self) -> str:
        return self.inputs.platforms.get(self.wanted.name, "cpu")

    @property
    def rank(self) -> RankResources:
        """What one worker rank of the model takes."""
        return rank_resources(self.wanted, self.platform)

    def memory_of(self, node: Node) -> int:
        """Return all memory of a node that engines may have; 0: not known."""
        return self.inputs.memory_bytes.get(node.node_id) or node.memory_bytes

    def nodes(self) -> list[Node]:
        """Return the nodes that the model may be on."""
        return [node for node in self.inputs.nodes if matches(node, self.wanted.placement.labels)]

    def gang(self, wanted: WantedModel) -> GangShape | NoShape:
        """Return the shape of a gang of the model written so."""
        return shape_gang(wanted, self.inputs.facts.get(wanted.name), self.inputs.nodes, self.platform)

    def machine(self, machine: Machine) -> Machine:
        """Return the machine as the engine uses it with the model's settings."""
        is_wide = self.settings is not None and self.settings.weight_bits == 32
        return machine_for(machine, self.engine) if is_wide else machine

    def layout(self, wanted: WantedModel, gang: GangShape, packing: Packing) -> Layout:
        """Return what the ranks of ``wanted`` get where ``packing`` puts them.

        Raises UserInputError where an accelerator is not known.
        """
        hardware = self._hardware(wanted, gang, packing)
        width = gang.tensor * gang.data
        torn = gang.ranks_per_node % width != 0
        hop = LOOPBACK if gang.pipeline == 1 else hardware.bus if gang.num_nodes == 1 else hardware.network
        places = []
        for number in range(gang.pipeline):
            stage = hardware.stage(number)
            link = LOOPBACK if width == 1 else hardware.network if torn and not gang.stages else stage.bus
            machine = self.machine(stage.machine)
            places.append(Place(pool=0, card=stage.card, machine=machine, link=link, near=stage.bus))
        return Layout(
            places=tuple(places),
            tensor=width,
            data=gang.data,
            expert_parallel=gang.expert,
            replicas=wanted.num_replicas,
            pools=(0,),
            hop=hop,
            over_network=torn and not gang.stages,
            memory_is_reported=hardware.memory_is_reported,
        )

    def _hardware(self, wanted: WantedModel, gang: GangShape, packing: Packing) -> ReplicaHardware:
        ranks: Counter[str] = Counter()
        for nodes in packing.placed.get(wanted.name, ()):
            for node in nodes:
                ranks[node] += gang.ranks_per_node
        if gang.stages:
            return hardware_by_stage([self._of_stage(wanted, gang, labels, ranks) for labels in gang.stages])
        if not ranks:
            able = [node for node in self.inputs.nodes if matches(node, wanted.placement.labels)]
            ranks.update({node.node_id: gang.ranks_per_node for node in able})
        return self.hardware(ranks)

    def _of_stage(
        self, wanted: WantedModel, gang: GangShape, labels: Mapping[str, str], packed: Mapping[str, int]
    ) -> ReplicaHardware:
        """Return the weakest of all nodes that the stage may get.

        All stages with its labels may come to lie on one of them.
        """
        together = gang.stages.count(labels) if gang.shares_nodes else 1
        on = {**wanted.placement.labels, **labels}
        nodes = [node for node in self.inputs.nodes if matches(node, on)]
        able = [node for node in nodes if slots_of(node, gang.resources) >= gang.tensor] or nodes
        ranks = {}
        for node in able:
            most = max(1, slots_of(node, gang.resources) // gang.tensor)
            ranks[node.node_id] = max(gang.tensor * min(together, most), packed.get(node.node_id, 0))
        return self.hardware(ranks)

    def hardware(self, ranks_on: Mapping[str, int]) -> ReplicaHardware:
        """Return what ranks get on these nodes (node → ranks there). Raises UserInputError as ``layout`` does."""
        told = self.inputs
        return find_hardware_of(
            ranks_on,
            told.nodes,
            self.rank,
            told.library,
            memory_bytes=told.memory_bytes,
            accelerators=told.accelerators,
        )


def slots_of(node: Node, rank: RankResources) -> int:
    """Return how many worker ranks a node has CPUs and GPUs for."""
    counts = [int(node.num_cpus / rank.num_cpus + 1e-9)] if rank.num_cpus else []
    counts += [_slots_of_cards(node.num_gpus, rank.num_gpus)] if rank.num_gpus else []
    return min(counts, default=0)


def _slots_of_cards(num_gpus: float, part: float) -> int:
    """Return how many ranks the cards hold: a part of a card is never spread over two."""
    return int(num_gpus) * int(1 / part + 1e-9) if part < 1 else int(num_gpus / part + 1e-9)
