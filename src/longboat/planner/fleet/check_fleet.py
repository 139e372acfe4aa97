"""Everything that can be known to be impossible before anything starts, for a whole fleet on given nodes."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longboat.core.errors import Problem
from longboat.core.plan import GangShape
from longboat.core.topology import Node
from longboat.core.wanted import WantedModel
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.fleet.pack import GangDemand, Packing, pack
from longboat.planner.fleet.place import NoShape, shape_gang
from longboat.planner.fleet.resources import amount_of_node, counted, describe, matches, shape_amount, sum_of
from longboat.planner.search.tasks import task_problems

__all__ = ("FleetCheck", "check_fleet")

MAX_NAMED_NODES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCheck:
    """A shape for every model that has one, in the order of the file, and every reason why the fleet cannot start."""

    shapes: Mapping[str, GangShape]
    problems: tuple[Problem, ...]
    packing: Packing


def check_fleet(models: Sequence[WantedModel], inputs: PlannerInputs, *, gateway_port: int) -> FleetCheck:
    """Return shapes of all gangs, and all problems at once; nothing may be started while there is one."""
    shapes: dict[str, GangShape] = {}
    problems: list[Problem] = []
    for index, model in enumerate(models):
        shape = shape_gang(model, inputs.facts.get(model.name), inputs.nodes, _platform(model, inputs))
        if isinstance(shape, NoShape):
            problems += [_at(index, problem) for problem in shape.problems]
        else:
            shapes[model.name] = shape
        found = (*_source(model, inputs), *_environment(model, inputs))
        found += task_problems(model, inputs.facts.get(model.name))
        problems += [_at(index, problem) for problem in found]
    packing = pack([_demand(model, shapes[model.name]) for model in models if model.name in shapes], inputs.nodes)
    problems += _room(models, shapes, packing, inputs.nodes)
    problems += _ports(gateway_port, inputs)
    return FleetCheck(shapes=shapes, problems=_once(problems), packing=packing)


def _platform(model: WantedModel, inputs: PlannerInputs) -> str:
    return inputs.platforms.get(model.name, "cpu")


def _demand(model: WantedModel, shape: GangShape) -> GangDemand:
    return GangDemand(model=model.name, shape=shape, replicas=model.num_replicas, labels=model.placement.labels)


def _at(index: int, problem: Problem) -> Problem:
    where = f"models[{index}].{problem.where}" if problem.where else ""
    return dataclasses.replace(problem, where=where)


def _once(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return problems without repetitions: a cluster without nodes is one problem, not one for each model."""
    return tuple(dict.fromkeys(problems))


def _source(model: WantedModel, inputs: PlannerInputs) -> list[Problem]:
    if model.source in inputs.unknown_builtins:
        return [_unknown_builtin(model.source, inputs.builtin_names)]
    return _path("source", model.source, model, inputs)


def _unknown_builtin(source: str, names: Sequence[str]) -> Problem:
    close = difflib.get_close_matches(source.removeprefix("builtin:"), names, n=1, cutoff=0.5)
    hint = f"write builtin:{close[0]}" if close else f"there are: {', '.join(f'builtin:{name}' for name in names)}"
    return Problem(where="source", what=f"there is no {source}", hint=hint)


def _environment(model: WantedModel, inputs: PlannerInputs) -> list[Problem]:
    path = model.environment
    return _path("engine.environment", path, model, inputs) if path else []


def _path(where: str, path: str, model: WantedModel, inputs: PlannerInputs) -> list[Problem]:
    """Return what is wrong with a path: every node that may be chosen must have it, as Ray chooses later."""
    chosen = {node.node_id: node for node in inputs.nodes if matches(node, model.placement.labels)}
    reports = [report for report in inputs.paths if report.path == path and report.node_id in chosen]
    bad = [report for report in reports if not report.exists or report.detail]
    if not bad:
        return []
    names = _names([chosen[report.node_id] for report in bad])
    what = f"{path} is missing on {names}"
    if bad[0].exists:
        what = f"{path} on {names}: {bad[0].detail}"
    if bad[0].hint:
        hint = bad[0].hint
    elif len(bad) < len(reports):
        good = _names([chosen[report.node_id] for report in reports if report.exists and not report.detail])
        hint = f"{good} has it: copy it from there, or choose nodes by placement.labels"
    else:
        hint = "put it there on every node that may be chosen, or correct the path"
    return [Problem(where=where, what=what, hint=hint)]


def _names(nodes: Sequence[Node]) -> str:
    names = [f"{node.hostname} ({node.address})" if node.hostname else node.address for node in nodes]
    more = len(names) - MAX_NAMED_NODES
    return ", ".join(names[:MAX_NAMED_NODES]) + (f" and {more} more" if more > 0 else "")


def _room(
    models: Sequence[WantedModel], shapes: Mapping[str, GangShape], packing: Packing, nodes: Sequence[Node]
) -> list[Problem]:
    """Return a problem for each model whose replicas did not all find room; one replica alone would."""
    placed = [(model, shapes[model.name]) for model in models if model.name in shapes]
    needs = [shape_amount(shape) * (model.num_replicas * shape.num_nodes) for model, shape in placed]
    have = sum_of([amount_of_node(node) for node in nodes if node.alive])
    problems = []
    for index, model in enumerate(models):
        if not packing.unplaced.get(model.name):
            continue
        shape, found = shapes[model.name], len(packing.placed[model.name])
        each = f"{describe(shape_amount(shape))} on {counted(shape.num_nodes, 'node')}"
        what = (
            f"{counted(model.num_replicas, 'replica')} of {each} each, {found} fit; "
            f"the fleet takes {describe(sum_of(needs))}, the cluster has {describe(have)}"
        )
        problems.append(Problem(where=f"models[{index}].replicas", what=what, hint=_fewer(found, shape)))
    return problems


def _fewer(found: int, shape: GangShape) -> str:
    if found:
        return f"write replicas: {found}, or add nodes"
    smaller = ", split it less" if shape.num_ranks > 1 else ""
    return f"give other models fewer replicas{smaller}, or add nodes"


def _ports(port: int, inputs: PlannerInputs) -> list[Problem]:
    nodes = {node.node_id: node for node in inputs.nodes}
    taken = [report for report in inputs.ports if report.port == port and report.node_id in nodes]
    if not taken:
        return []
    owner = f" (by {taken[0].owner})" if taken[0].owner else ""
    in_use = f"port {port} is in use on {_names([nodes[report.node_id] for report in taken])}{owner}"
    what = "; ".join(dict.fromkeys(report.problem for report in taken if report.problem)) or in_use
    used = {report.port for report in inputs.ports}
    free = next(other for other in itertools.chain(range(port + 1, 65536), range(1024, port)) if other not in used)
    return [Problem(where="gateway.port", what=what, hint=f"write port: {free}, or end what has it")]
