"""Everything that can be known to be impossible before anything starts, for a whole fleet on given nodes."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.core.errors import Problem
from longboat.core.plan import GangShape
from longboat.core.topology import Node
from longboat.planner.pack import GangDemand, Packing, pack
from longboat.planner.place import NoShape, shape_gang
from longboat.planner.resources import amount_of_node, describe, matches, shape_amount, sum_of
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.types.source import is_local_path

__all__ = ("FleetPlan", "PathReport", "PortReport", "Surroundings", "plan_fleet")

MAX_NAMED_NODES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PathReport:
    """What a node says about a local path. detail: what is wrong with a path that exists (``no config.json``)."""

    node_id: str
    path: str
    exists: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReport:
    """A port on which a node's gateway could not listen; what this fleet's own gateway has is not reported.

    problem: why, in the node's words; empty where it is simply in use
    owner: who has it, if known
    """

    node_id: str
    port: int
    problem: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the caller found out for the checks.

    facts: model name → what its config says; models that are not there are not checked against one
    platforms: model name → ``cuda`` or ``cpu`` of its engine environment; ``cpu`` where it is not there
    paths: of local sources and engine environments, from the nodes that were asked
    builtin_names: names of built-in models (``tiny``), for hints; unknown_builtins: sources that name none
    """

    nodes: tuple[Node, ...]
    facts: Mapping[str, ModelConfig] = field(default_factory=dict)
    platforms: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[PathReport, ...] = ()
    ports: tuple[PortReport, ...] = ()
    builtin_names: tuple[str, ...] = ()
    unknown_builtins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """A shape for every model that has one, in the order of the file, and every reason why the fleet cannot start."""

    shapes: Mapping[str, GangShape]
    problems: tuple[Problem, ...]
    packing: Packing


def plan_fleet(fleet: Fleet, around: Surroundings) -> FleetPlan:
    """Shapes of all gangs, and all problems at once; nothing may be started while there is one."""
    shapes: dict[str, GangShape] = {}
    problems: list[Problem] = []
    for index, model in enumerate(fleet.models):
        shape = shape_gang(model, around.facts.get(model.name), around.nodes, _platform(model, around))
        if isinstance(shape, NoShape):
            problems += [_at(index, problem) for problem in shape.problems]
        else:
            shapes[model.name] = shape
        problems += [_at(index, problem) for problem in (*_source(model, around), *_environment(model, around))]
    packing = pack([_demand(model, shapes[model.name]) for model in fleet.models if model.name in shapes], around.nodes)
    problems += _room(fleet, shapes, packing, around.nodes)
    problems += _ports(fleet, around)
    return FleetPlan(shapes=shapes, problems=_once(problems), packing=packing)


def _platform(model: ModelSpec, around: Surroundings) -> str:
    return around.platforms.get(model.name, "cpu")


def _demand(model: ModelSpec, shape: GangShape) -> GangDemand:
    return GangDemand(model=model.name, shape=shape, replicas=model.num_replicas, labels=model.placement.labels)


def _at(index: int, problem: Problem) -> Problem:
    where = f"models[{index}].{problem.where}" if problem.where else ""
    return dataclasses.replace(problem, where=where)


def _once(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Without repetitions: a cluster without nodes is one problem, not one for each model."""
    return tuple(dict.fromkeys(problems))


def _source(model: ModelSpec, around: Surroundings) -> list[Problem]:
    if model.source in around.unknown_builtins:
        return [_unknown_builtin(model.source, around.builtin_names)]
    return _path("source", model.source, model, around) if is_local_path(model.source) else []


def _unknown_builtin(source: str, names: Sequence[str]) -> Problem:
    close = difflib.get_close_matches(source.removeprefix("builtin:"), names, n=1, cutoff=0.5)
    hint = f"write builtin:{close[0]}" if close else f"there are: {', '.join(f'builtin:{name}' for name in names)}"
    return Problem(where="source", what=f"there is no {source}", hint=hint)


def _environment(model: ModelSpec, around: Surroundings) -> list[Problem]:
    path = model.engine.environment
    return _path("engine.environment", path, model, around) if path else []


def _path(where: str, path: str, model: ModelSpec, around: Surroundings) -> list[Problem]:
    """Every node that may be chosen must have the path: which of them Ray takes is not known yet."""
    chosen = {node.node_id: node for node in around.nodes if matches(node, model.placement.labels)}
    reports = [report for report in around.paths if report.path == path and report.node_id in chosen]
    bad = [report for report in reports if not report.exists or report.detail]
    if not bad:
        return []
    names = _names([chosen[report.node_id] for report in bad])
    what = f"{path} is missing on {names}"
    if bad[0].exists:
        what = f"{path} on {names}: {bad[0].detail}"
    if len(bad) < len(reports):
        good = _names([chosen[report.node_id] for report in reports if report not in bad])
        hint = f"{good} has it: copy it from there, or choose nodes by placement.labels"
    else:
        hint = "put it there on every node that may be chosen, or correct the path"
    return [Problem(where=where, what=what, hint=hint)]


def _names(nodes: Sequence[Node]) -> str:
    names = [f"{node.hostname} ({node.address})" if node.hostname else node.address for node in nodes]
    more = len(names) - MAX_NAMED_NODES
    return ", ".join(names[:MAX_NAMED_NODES]) + (f" and {more} more" if more > 0 else "")


def _room(fleet: Fleet, shapes: Mapping[str, GangShape], packing: Packing, nodes: Sequence[Node]) -> list[Problem]:
    """Models whose replicas did not all find room. A shape says that one replica alone would."""
    placed = [(model, shapes[model.name]) for model in fleet.models if model.name in shapes]
    needs = [shape_amount(shape) * (model.num_replicas * shape.num_nodes) for model, shape in placed]
    have = sum_of([amount_of_node(node) for node in nodes if node.alive])
    problems = []
    for index, model in enumerate(fleet.models):
        if not packing.unplaced.get(model.name):
            continue
        shape, found = shapes[model.name], len(packing.placed[model.name])
        each = f"{describe(shape_amount(shape))} on {_nodes(shape.num_nodes)}"
        what = (
            f"{_replicas(model.num_replicas)} of {each} each, {found} fit; "
            f"the fleet takes {describe(sum_of(needs))}, the cluster has {describe(have)}"
        )
        problems.append(Problem(where=f"models[{index}].replicas", what=what, hint=_fewer(found, shape)))
    return problems


def _fewer(found: int, shape: GangShape) -> str:
    if found:
        return f"write replicas: {found}, or add nodes"
    smaller = ", split it less" if shape.tensor * shape.pipeline > 1 else ""
    return f"give other models fewer replicas{smaller}, or add nodes"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _ports(fleet: Fleet, around: Surroundings) -> list[Problem]:
    nodes = {node.node_id: node for node in around.nodes}
    port = fleet.gateway.port
    taken = [report for report in around.ports if report.port == port and report.node_id in nodes]
    if not taken:
        return []
    owner = f" (by {taken[0].owner})" if taken[0].owner else ""
    in_use = f"port {port} is in use on {_names([nodes[report.node_id] for report in taken])}{owner}"
    what = "; ".join(dict.fromkeys(report.problem for report in taken if report.problem)) or in_use
    used = {report.port for report in around.ports}
    free = next(other for other in itertools.chain(range(port + 1, 65536), range(1024, port)) if other not in used)
    return [Problem(where="gateway.port", what=what, hint=f"write port: {free}, or end what has it")]
