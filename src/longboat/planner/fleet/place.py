"""The shape of a gang: over how many nodes a replica spreads, so that tensor parallel ranks stay inside a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.core.errors import Problem
from longboat.core.plan import GangShape, RankResources
from longboat.core.topology import Node
from longboat.core.wanted import WantedModel
from longboat.planner.fleet.place_stages import shape_by_stage
from longboat.planner.fleet.resources import (
    Amount,
    amount_of_node,
    amount_per_node,
    counted,
    describe,
    fits,
    matches,
    rank_resources,
    sum_of,
)
from longboat.planner.fleet.split import check_split
from longboat.planner.memory.split_shape import even_stages

__all__ = ("NoShape", "bundles", "shape_gang", "strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoShape:
    """No shape works. Paths of the problems start at the model (``split.tensor``)."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gang:
    """A gang that is to be placed, and the room that each matching node has for it."""

    tensor: int
    pipeline: int
    rank: RankResources
    rooms: tuple[Amount, ...]
    layers: tuple[int, ...] = ()
    data: int = 1
    expert: bool = False
    engine: str = ""
    node_each: bool = False  # whether each rank needs a node of its own

    @property
    def num_ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def node_counts(self) -> list[int]:
        """Numbers of nodes over which the ranks may be spread; a data part of several stays whole on a node."""
        if self.node_each:
            return [self.num_ranks]
        return _divisors(self.num_ranks if self.data == 1 else self.data)

    def need(self, num_nodes: int) -> Amount:
        return amount_per_node(self.rank, self.num_ranks // num_nodes)

    def num_fitting(self, num_nodes: int) -> int:
        """Return nodes that have room for one node's share."""
        return sum(fits(self.need(num_nodes), room) for room in self.rooms)

    def works(self, num_nodes: int) -> bool:
        return self.num_fitting(num_nodes) >= num_nodes

    def splits_tensor(self, num_nodes: int) -> bool:
        """Return whether a tensor group would reach over more than one node."""
        return (self.num_ranks // num_nodes) % self.tensor != 0

    def shape(self, num_nodes: int, reason: str) -> GangShape:
        if self.splits_tensor(num_nodes):
            reason += "; tensor parallel ranks talk over the network in every layer, which is slow"
        return GangShape(
            tensor=self.tensor,
            pipeline=self.pipeline,
            num_nodes=num_nodes,
            resources=self.rank,
            reason=reason,
            layers=self.layers,
            data=self.data,
            expert=self.expert,
        )


def shape_gang(
    model: WantedModel, facts: ModelConfig | None, nodes: Sequence[Node], environment_platform: str
) -> GangShape | NoShape:
    """Return how one replica of ``model`` spreads over ``nodes``.

    facts: None where the model's config is not known; environment_platform: ``cuda`` or ``cpu``.
    Looks at what the nodes have in total, not at what is free, and at this replica alone (see ``pack`` for all).
    """
    if problems := check_split(model, facts):
        return NoShape(problems=problems)
    matching = [node for node in nodes if matches(node, model.placement.labels)]
    gang = _Gang(
        tensor=model.degrees[0],
        pipeline=model.degrees[1],
        rank=rank_resources(model, environment_platform),
        rooms=tuple(amount_of_node(node) for node in matching),
        layers=model.layers or _even_layers(model, facts),
        data=model.data or 1,
        expert=bool(model.expert),
        engine=model.engine,
        node_each=not model.splits.divides_layers,
    )
    if not matching:
        return NoShape(problems=(_no_node(model, nodes),))
    if model.placement.stages:
        spread = len(model.placement.stages) if gang.node_each else None
        placement = replace(model.placement, nodes=model.placement.nodes or spread)
        found = shape_by_stage(replace(model, layers=gang.layers, placement=placement), gang.rank, nodes)
        return NoShape(problems=(found,)) if isinstance(found, Problem) else found
    if model.placement.nodes is not None:
        return _asked(gang, model.placement.nodes)
    return _best(gang)


def _even_layers(model: WantedModel, facts: ModelConfig | None) -> tuple[int, ...]:
    """Return the layers of each stage for an engine that does not divide them: as many as were planned for."""
    stages = model.degrees[1]
    if model.splits.divides_layers or stages == 1 or facts is None or facts.num_layers is None:
        return ()
    return even_stages(facts.num_layers, stages)


def _best(gang: _Gang) -> GangShape | NoShape:
    """Choose one stage a node; else fewer nodes with whole tensor groups; else tensor groups over few nodes."""
    whole = [num for num in gang.node_counts if not gang.splits_tensor(num)]
    torn = [num for num in gang.node_counts if gang.splits_tensor(num)]
    # Data parts meet in each layer, where the model has experts: they keep together.
    for num_nodes in (*(whole if gang.data > 1 else reversed(whole)), *torn):
        if gang.works(num_nodes):
            return gang.shape(num_nodes, _reason(gang, num_nodes))
    return NoShape(problems=(_no_room(gang),))


def _asked(gang: _Gang, num_nodes: int) -> GangShape | NoShape:
    divisors = gang.node_counts
    where = "placement.nodes"
    if num_nodes not in divisors and gang.node_each:
        what = (
            f"{num_nodes} nodes for {counted(gang.pipeline, 'stage')}: {gang.engine} computes each on a node of its own"
        )
        hint = f"write nodes: {gang.num_ranks}, or leave it out"
        return NoShape(problems=(Problem(where=where, what=what, hint=hint),))
    if num_nodes not in divisors:
        parts = counted(gang.num_ranks, "worker rank") if gang.data == 1 else _parts(gang)
        what = f"{num_nodes} nodes do not divide {parts} evenly"
        hint = f"write nodes: {min(divisors, key=lambda divisor: (abs(divisor - num_nodes), divisor))}"
        return NoShape(problems=(Problem(where=where, what=what, hint=hint),))
    if num_nodes > len(gang.rooms):
        what = f"{num_nodes} nodes are asked for, {counted(len(gang.rooms), 'node')} can be chosen"
        fewer = max((num for num in divisors if num <= len(gang.rooms) and gang.works(num)), default=None)
        hint = f"write nodes: {fewer}" if fewer else "add nodes, or widen placement.labels"
        return NoShape(problems=(Problem(where=where, what=what, hint=hint),))
    if not gang.works(num_nodes):
        other = next((num for num in divisors if gang.works(num)), None)
        need, found = describe(gang.need(num_nodes)), gang.num_fitting(num_nodes)
        what = f"{counted(num_nodes, 'node')} with {need} each are needed, {found} of {len(gang.rooms)} have that"
        hint = f"write nodes: {other}" if other else _less(gang)
        return NoShape(problems=(Problem(where=where, what=what, hint=hint),))
    return gang.shape(num_nodes, f"placement.nodes asks for {counted(num_nodes, 'node')}")


def _reason(gang: _Gang, num_nodes: int) -> str:
    per_node = gang.num_ranks // num_nodes
    if gang.num_ranks == 1:
        return f"one rank on one node; {gang.num_fitting(1)} of {counted(len(gang.rooms), 'node')} can take it"
    if gang.splits_tensor(num_nodes):
        most = max(_capacity(gang.rank, room) for room in gang.rooms)
        lack = f"no node has room for {gang.tensor} tensor ranks (the largest takes {most})"
        return f"{lack}: {per_node} on each of {counted(num_nodes, 'node')}"
    if gang.data > 1:
        return f"{gang.data // num_nodes} of {_parts(gang)} on each of {counted(num_nodes, 'node')}"
    if gang.pipeline == 1:
        return f"all {gang.tensor} tensor ranks on one node"
    if num_nodes == gang.pipeline:
        return f"one pipeline stage on each of {counted(num_nodes, 'node')}"
    stages = gang.pipeline // num_nodes
    found = gang.num_fitting(gang.pipeline)
    with_room = f"{counted(found, 'node')} with room for a stage, {gang.pipeline} stages"
    return f"{with_room}: {stages} stages on each of {counted(num_nodes, 'node')}"


def _no_node(model: WantedModel, nodes: Sequence[Node]) -> Problem:
    alive = [node for node in nodes if node.alive]
    labels = model.placement.labels
    if not alive or not labels:
        return Problem(
            where="", what="the cluster has no node that is alive", hint="start one: longboat node start --head"
        )
    for key, value in labels.items():
        if not any(node.labels.get(key) == value for node in alive):
            what = f"none of {counted(len(alive), 'node')} carries the label {key}={value}"
            return Problem(where=f"placement.labels.{key}", what=what, hint=_near_label(key, value, alive))
    wanted = ", ".join(f"{key}={value}" for key, value in labels.items())
    return Problem(where="placement.labels", what=f"no node carries all of {wanted}", hint="ask for fewer labels")


def _near_label(key: str, value: str, nodes: Sequence[Node]) -> str:
    values = sorted({node.labels[key] for node in nodes if key in node.labels})
    if values:
        return f"{key} is one of: {', '.join(values)}"
    existing = sorted(
        {f"{name}={text}" for node in nodes for name, text in node.labels.items() if not name.startswith("ray.io/")}
    )
    if existing:
        return f"labels that exist: {', '.join(existing)}"
    return f"start a node with it: longboat node start --join ADDRESS --label {key}={value}"


def _no_room(gang: _Gang) -> Problem:
    """Return why not even one replica finds room: which resource is short, and what would fit."""
    if gang.node_each and gang.num_ranks > 1:
        return _too_few_nodes(gang)
    need, have = gang.need(1), sum_of(gang.rooms)
    where = "split" if gang.num_ranks > 1 else f"resources.{_short(need, gang.rooms)}"
    largest = f", the largest of them {describe(max(gang.rooms, key=_size))}" if len(gang.rooms) > 1 else ""
    what = (
        f"one replica takes {describe(need)} ({counted(gang.num_ranks, 'worker rank')}); "
        f"{counted(len(gang.rooms), 'node')} that can be chosen: {describe(have)}{largest}"
    )
    return Problem(where=where, what=what, hint=_less(gang))


def _too_few_nodes(gang: _Gang) -> Problem:
    """Return why stages that need a node each do not find as many."""
    count, need = gang.num_ranks, describe(gang.need(gang.num_ranks))
    found = gang.num_fitting(count)
    what = (
        f"{gang.engine} computes each stage on a node of its own: "
        f"{counted(count, 'node')} with {need} each are needed, "
        f"{found} of {len(gang.rooms)} {'has' if found == 1 else 'have'} that"
    )
    fewer = f"write pipeline: {found}" if found else f"no node has room for a stage ({need}): ask for less"
    return Problem(where="split.pipeline", what=what, hint=f"{fewer}, or add nodes")


def _short(need: Amount, rooms: Sequence[Amount]) -> str:
    """Return the resource that no room has enough of."""
    if all(need.gpus > room.gpus for room in rooms):
        return "gpus"
    return "cpus" if all(need.cpus > room.cpus for room in rooms) else "memory"


def _size(room: Amount) -> tuple[int, int, int]:
    return room.gpus, room.cpus, room.memory_bytes or 0


def _less(gang: _Gang) -> str:
    capacity = sum(_capacity(gang.rank, room) for room in gang.rooms)
    if capacity == 0:
        return f"no node has room for one rank ({describe(gang.need(gang.num_ranks))}): ask for less, or add a node"
    return f"split into at most {counted(capacity, 'worker rank')}, or add nodes"


def _capacity(rank: RankResources, room: Amount) -> int:
    """Return worker ranks that fit on one node."""
    one = amount_per_node(rank, 1)
    counts = [room.cpus // one.cpus] if one.cpus else []
    counts += [room.gpus // one.gpus] if one.gpus else []
    counts += [room.memory_bytes // one.memory_bytes] if one.memory_bytes and room.memory_bytes is not None else []
    return min(counts)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _parts(gang: _Gang) -> str:
    return f"{gang.data} data parts of {counted(gang.tensor * gang.pipeline, 'worker rank')}"


def bundles(shape: GangShape) -> list[dict[str, float]]:
    """Return bundles of the gang's placement group: one for each node rank, in Ray's names for resources."""
    rank, per_node = shape.resources, shape.ranks_per_node
    amounts = {"CPU": rank.num_cpus, "GPU": rank.num_gpus, "memory": float(rank.memory_bytes)}
    return [{name: value * per_node for name, value in amounts.items() if value} for _ in range(shape.num_nodes)]


def strategy(shape: GangShape) -> str:
    """Return the strategy of the gang's placement group: its nodes differ, unless stages may share them."""
    if shape.shares_nodes:
        return "PACK"
    return "STRICT_SPREAD" if shape.num_nodes > 1 else "STRICT_PACK"
