"""The shape of a gang whose stages are bound to nodes by labels: each stage is a node rank of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat.core.errors import Problem
from longboat.core.plan import GangShape, RankResources
from longboat.core.topology import Node
from longboat.core.wanted import WantedModel
from longboat.planner.fleet.pack import GangDemand, pack
from longboat.planner.fleet.resources import (
    amount_of_node,
    amount_per_node,
    counted,
    describe,
    fits,
    matches,
    shape_amount,
)

__all__ = ("label_words", "shape_by_stage")

WHERE = "placement.stages"


def shape_by_stage(model: WantedModel, rank: RankResources, nodes: Sequence[Node]) -> GangShape | Problem:
    """Place one stage after the other on nodes with its labels; several share one unless ``nodes`` forbids it."""
    stages, spread = model.placement.stages, model.placement.nodes
    tensor, pipeline = model.degrees
    if len(stages) != pipeline:
        what = f"labels for {counted(len(stages), 'stage')}, and the model is split into {counted(pipeline, 'stage')}"
        return Problem(where=WHERE, what=what, hint=f"write split.pipeline: {len(stages)}, or labels for each stage")
    if (model.data or 1) > 1:
        what = f"labels of stages, and data: {model.data}: a data part has all stages"
        return Problem(where=WHERE, what=what, hint="leave placement.stages out, or write split.data: 1 and replicas")
    if spread not in (None, pipeline):
        what = f"{spread} nodes for {counted(pipeline, 'stage')} that are placed by their labels"
        return Problem(where="placement.nodes", what=what, hint=f"write nodes: {pipeline}, or leave it out")
    shape = GangShape(
        tensor=tensor,
        pipeline=pipeline,
        num_nodes=pipeline,
        resources=rank,
        reason=_reason(stages, model.layers),
        layers=model.layers,
        stages=tuple(dict(labels) for labels in stages),
        shares_nodes=spread is None,
        expert=bool(model.expert),
    )
    able = [node for node in nodes if matches(node, model.placement.labels)]
    return _without_node(shape, able) or _without_room(model, shape, able) or shape


def _without_node(shape: GangShape, nodes: Sequence[Node]) -> Problem | None:
    """Return the first stage whose labels, or whose need, no node meets."""
    need = amount_per_node(shape.resources, shape.tensor)
    for number, labels in enumerate(shape.stages):
        where, found = f"{WHERE}[{number}]", [node for node in nodes if matches(node, labels)]
        if not found:
            what = f"none of {counted(len(nodes), 'node')} that can be chosen carries {label_words(labels)}"
            return Problem(where=where, what=what, hint=_near(labels, nodes))
        if not any(fits(need, amount_of_node(node)) for node in found):
            largest = describe(max((amount_of_node(node) for node in found), key=lambda room: (room.gpus, room.cpus)))
            what = f"a stage takes {describe(need)}, and nodes with {label_words(labels)} have {largest} at most"
            return Problem(where=where, what=what, hint="ask for less in resources, or choose other nodes")
    return None


def _without_room(model: WantedModel, shape: GangShape, nodes: Sequence[Node]) -> Problem | None:
    """Return why the stages do not find room together."""
    if pack([GangDemand(model=model.name, shape=shape, replicas=1, labels={})], nodes).complete:
        return None
    each = "" if shape.shares_nodes else ", each on a node of its own"
    stages = f"{counted(shape.pipeline, 'stage')} of {describe(shape_amount(shape))}{each}"
    what = f"{stages} find no room together on their nodes"
    hint = "leave out placement.nodes, bind stages to other nodes, or split less"
    return Problem(where=WHERE, what=what, hint=hint if not shape.shares_nodes else hint.partition(", ")[2])


def _near(labels: Mapping[str, str], nodes: Sequence[Node]) -> str:
    """Return the values that there are of the first label that no node carries so."""
    for key, value in labels.items():
        values = sorted({node.labels[key] for node in nodes if key in node.labels})
        if value not in values:
            return f"{key} is one of: {', '.join(values)}" if values else f"start a node with --label {key}={value}"
    return "ask for fewer labels of one stage"


def _reason(stages: Sequence[Mapping[str, str]], layers: Sequence[int]) -> str:
    """Return ``stages by label: 26 layers on zone=a, 38 layers on zone=b``."""
    names = [f"{count} layers" for count in layers] if layers else [f"stage {number}" for number in range(len(stages))]
    pairs = (f"{what} on {label_words(labels) or 'any node'}" for what, labels in zip(names, stages, strict=True))
    return f"stages by label: {', '.join(pairs)}"


def label_words(labels: Mapping[str, str]) -> str:
    """Return ``zone=a, disk=fast``."""
    return ", ".join(f"{key}={value}" for key, value in labels.items())
