"""What the planner must know about the nodes and the models of a fleet, gathered before anything is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from longboat.builtin import describe, is_builtin, names
from longboat.catalog.formats.hf_config import facts_from_config, read_config
from longboat.catalog.formats.model_facts import ModelConfig
from longboat.catalog.readers.gguf_shape import facts_from_shape
from longboat.cluster.host.hardware import node_cpus, node_memory_bytes
from longboat.cluster.preflight.adapters import Findings, adapter_paths, adapter_problems, with_adapter_facts
from longboat.cluster.preflight.checks import NodeFindings, PreflightRequest, inspect_node
from longboat.cluster.preflight.knowledge import Basis, built_in_basis, shape_of_file, with_knowledge
from longboat.cluster.protocol.model import read_engine
from longboat.core.errors import ClusterError, Problem, UserInputError
from longboat.core.plan import GangShape
from longboat.core.topology import Node
from longboat.engines.fleet_checks import engine_problems
from longboat.engines.registry import splits_of
from longboat.planner.fleet.check_fleet import check_fleet
from longboat.planner.fleet.decide import Decision, decide
from longboat.planner.fleet.inputs import PathReport, PlannerInputs, PortReport
from longboat.planner.fleet.resources import matches
from longboat.planner.search.tasks import task_reason
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.types.source import is_fetched, is_local_path
from longboat.spec.wanted import fleet_with_numbers, wanted_model, wanted_models

__all__ = ("CheckedPlan", "UpOptions", "checked_plan", "inspect_here", "this_machine")

_QUEUE_BYTES, _QUEUE_OVER_NODES_BYTES = 241 << 20, 161 << 20
"""Shared memory that must be free for the largest queue between vLLM's processes on a node, else vLLM ends (0.29 to
0.32): a worker's queue of responses has 240 MiB, and the core's queue of orders, the largest of a gang over nodes, 160.
"""

Inspect = Callable[[Sequence[str], PreflightRequest], Mapping[str, Any]]
"""(node ids, request) → node id → NodeFindings, or the exception that came instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What ``up`` wants besides the file.

    kept: models whose numbers were decided before, with them; running: the fleet that runs
    force: start also what is sure not to fit
    """

    kept: Mapping[str, ModelSpec] = field(default_factory=dict)
    running: Fleet | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlan:
    """fleet: with numbers everywhere; overridden: why some of it should not be started, where that was forced.

    weights: node → fetched sources that its store has whole
    """

    fleet: Fleet
    shapes: Mapping[str, GangShape]
    decision: Decision
    overridden: tuple[Problem, ...] = ()
    weights: Mapping[str, frozenset[str]] = field(default_factory=dict)


def this_machine() -> Node:
    """Describe this machine as the only node of a cluster that is still to be started."""
    gpus = sum(1 for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit())
    return Node(
        node_id="local",
        address="127.0.0.1",
        hostname=socket.gethostname(),
        num_cpus=float(node_cpus()),
        num_gpus=float(gpus),
        memory_bytes=node_memory_bytes(),
        is_head=True,
    )


def inspect_here(node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
    """Inspect this machine, for a cluster that does not exist yet, or that this process has started."""
    return {node_id: inspect_node(request) for node_id in node_ids}


def checked_plan(
    fleet: Fleet,
    nodes: Sequence[Node],
    inspect: Inspect = inspect_here,
    *,
    basis: Basis | None = None,
    options: UpOptions = UpOptions(),
) -> CheckedPlan:
    """Numbers and shapes for the whole fleet on these nodes.

    basis: of the planner; None: what comes with Longboat

    Raises UserInputError with every problem found, ClusterError when a node cannot be asked. Starts nothing.
    """
    tls, redis, sign_in = fleet.gateway.tls, fleet.gateway.redis, fleet.gateway.sign_in
    request = PreflightRequest(
        paths=_paths(fleet),
        engines={m.name: read_engine(m.engine.model_dump(exclude={"options", "env"})) for m in fleet.models},
        gateway=(fleet.gateway.host, fleet.gateway.port),
        tls=(tls.certificate, tls.key) if tls else None,
        redis_url=(redis.url_file, redis.url_env) if redis and redis.url is None else None,
        sign_in=(sign_in.client_secret_file, sign_in.client_secret_env) if sign_in else None,
        adapters=adapter_paths(fleet),
        fetched=tuple(dict.fromkeys(model.source for model in fleet.models if is_fetched(model.source))),
        weights=fleet.weights,
    )
    findings = _answers(nodes, inspect([node.node_id for node in nodes], request))
    adapters = _adapter_findings(nodes, findings)
    fleet = with_adapter_facts(fleet, adapters, options.running)
    inputs = with_knowledge(_inputs(fleet, nodes, findings), fleet, findings, basis or built_in_basis())
    kept = {name: wanted_model(model, splits_of) for name, model in options.kept.items()}
    running = {model.name: model for model in wanted_models(options.running, splits_of)} if options.running else {}
    decision = decide(wanted_models(fleet, splits_of), inputs, kept, running)
    fleet = fleet_with_numbers(fleet, decision.models)
    plan = check_fleet(decision.models, inputs, gateway_port=fleet.gateway.port)
    problems = [
        *_undoubled(decision.problems if not options.force else decision.undecided, plan.problems),
        *plan.problems,
        *_host_problems(findings),
        *_secret_problems(findings),
        *_engine_problems(fleet, nodes, findings),
        *_lacking(fleet, plan.shapes, nodes, findings),
        *_shared_memory_problems(fleet, plan.shapes, nodes, findings),
        *engine_problems(fleet),
        *adapter_problems(fleet, adapters, inputs.shapes),
    ]
    if problems:
        message = f"{len(problems)} problems, nothing was started" if len(problems) > 1 else str(problems[0])
        raise UserInputError(message, hint=problems[0].hint, problems=tuple(problems))
    shapes = {name: _with_reason(shape, decision.reasons.get(name, "")) for name, shape in plan.shapes.items()}
    for model in decision.models:
        if model.name in shapes:
            shapes[model.name] = _with_reason(shapes[model.name], task_reason(model, inputs.facts.get(model.name)))
    overridden = decision.problems if options.force else ()
    weights = {node_id: found.weights for node_id, found in findings.items()}
    return CheckedPlan(fleet=fleet, shapes=shapes, decision=decision, overridden=overridden, weights=weights)


def _adapter_findings(nodes: Sequence[Node], findings: Mapping[str, NodeFindings]) -> Findings:
    return {node.hostname or node.address: findings[node.node_id].adapters for node in nodes}


def _with_reason(shape: GangShape, reason: str) -> GangShape:
    return replace(shape, reason=f"{reason}; {shape.reason}") if reason else shape


def _undoubled(problems: Sequence[Problem], others: Sequence[Problem]) -> list[Problem]:
    """Return the problems without those that other words already say of the same model."""
    told = [problem.where for problem in others]
    return [problem for problem in problems if not any(_model_of(where) == _model_of(problem.where) for where in told)]


def _model_of(where: str) -> str:
    return where.partition("]")[0]


def _paths(fleet: Fleet) -> tuple[str, ...]:
    proposing = [model.speculative.model for model in fleet.models if model.speculative is not None]
    sources = [*(model.source for model in fleet.models), *(name for name in proposing if name is not None)]
    return tuple(dict.fromkeys(source for source in sources if is_local_path(source)))


def _answers(nodes: Sequence[Node], answers: Mapping[str, Any]) -> dict[str, NodeFindings]:
    for node in nodes:
        if not isinstance(answers[node.node_id], NodeFindings):
            raise ClusterError(
                f"node {node.hostname} ({node.address}) does not answer: {answers[node.node_id]!r}"[:500],
                hint="longboat must be installed in the same version on every node",
            )
    return dict(answers)


def _inputs(fleet: Fleet, nodes: Sequence[Node], findings: Mapping[str, NodeFindings]) -> PlannerInputs:
    """Return what the nodes found, without what is known of models."""
    return PlannerInputs(
        nodes=tuple(nodes),
        facts=_facts(fleet, findings),
        platforms=_platforms(fleet, nodes, findings),
        paths=(*_folder_reports(findings), *_environment_reports(fleet, findings)),
        ports=tuple(
            PortReport(node_id=node_id, port=fleet.gateway.port, problem=found.port_problem)
            for node_id, found in findings.items()
            if found.port_problem
        ),
        builtin_names=names(),
        unknown_builtins=frozenset(m.source for m in fleet.models if is_builtin(m.source) and not _is_known(m.source)),
    )


def _folder_reports(findings: Mapping[str, NodeFindings]) -> list[PathReport]:
    return [
        PathReport(node_id=node_id, path=path, exists=finding.exists, detail=finding.detail, hint=finding.hint)
        for node_id, found in findings.items()
        for path, finding in found.paths.items()
    ]


def _environment_reports(fleet: Fleet, findings: Mapping[str, NodeFindings]) -> list[PathReport]:
    """Report on the user's own environments, folders or interpreters: the engine says what is wrong with the path."""
    return [
        PathReport(
            node_id=node_id, path=model.engine.environment, exists=True, detail=found.engines[model.name].problem
        )
        for node_id, found in findings.items()
        for model in fleet.models
        if model.engine.environment
    ]


def _is_known(source: str) -> bool:
    try:
        describe(source)
    except UserInputError:
        return False
    return True


def _facts(fleet: Fleet, findings: Mapping[str, NodeFindings]) -> dict[str, ModelConfig]:
    facts = {}
    for model in fleet.models:
        if is_builtin(model.source):
            if _is_known(model.source):
                facts[model.name] = facts_from_config(describe(model.source).config)
        elif config := _config_of(model, findings):
            facts[model.name] = read_config(config, f"{model.source}/config.json")
        elif shape := shape_of_file(model.source, findings):
            facts[model.name] = facts_from_shape(shape)
    return facts


def _config_of(model: ModelSpec, findings: Mapping[str, NodeFindings]) -> str | None:
    for found in findings.values():
        finding = found.paths.get(model.source)
        if finding and finding.config:
            return finding.config
    return None


def _candidates(model: ModelSpec, nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if matches(node, model.placement.labels)]


def _platforms(fleet: Fleet, nodes: Sequence[Node], findings: Mapping[str, NodeFindings]) -> dict[str, str]:
    """Platform of each model's engine: that of the first node that may host it and has it."""
    platforms = {}
    for model in fleet.models:
        found = [findings[node.node_id].engines[model.name].platform for node in _candidates(model, nodes)]
        if known := [platform for platform in found if platform]:
            platforms[model.name] = known[0]
    return platforms


def _engine_problems(fleet: Fleet, nodes: Sequence[Node], findings: Mapping[str, NodeFindings]) -> list[Problem]:
    """Return the problems of installed environments; an environment of the user's own is a path."""
    problems = []
    for index, model in enumerate(fleet.models):
        for node in _candidates(model, nodes) if model.engine.environment is None else ():
            engine = findings[node.node_id].engines[model.name]
            if engine.problem:
                what = f"node {node.hostname or node.address}: {engine.problem}"
                problems.append(Problem(where=f"models[{index}].engine", what=what, hint=engine.hint))
    return problems


def _lacking(
    fleet: Fleet, shapes: Mapping[str, GangShape], nodes: Sequence[Node], findings: Mapping[str, NodeFindings]
) -> list[Problem]:
    """Return the problems of environments that cannot take part in a gang of the model's shape."""
    problems = []
    for index, model in enumerate(fleet.models):
        shape = shapes.get(model.name)
        for ability, where, what in _needs(shape) if shape is not None else ():
            for node in _candidates(model, nodes):
                if hint := findings[node.node_id].engines[model.name].lacks.get(ability, ""):
                    what = f"node {node.hostname or node.address}: {model.engine.kind} there cannot {what}"
                    problems.append(Problem(where=f"models[{index}].{where}", what=what, hint=hint))
    return problems


def _shared_memory_problems(
    fleet: Fleet, shapes: Mapping[str, GangShape], nodes: Sequence[Node], findings: Mapping[str, NodeFindings]
) -> Iterator[Problem]:
    """Yield the nodes whose /dev/shm is too small for ranks that exchange messages there, as in a usual container."""
    for index, model in enumerate(fleet.models):
        shape = shapes.get(model.name)
        if shape is None or model.engine.kind != "vllm" or shape.tensor * shape.pipeline == 1:
            continue
        needed = _QUEUE_OVER_NODES_BYTES if shape.num_nodes > 1 and shape.data == 1 else _QUEUE_BYTES
        for node in _candidates(model, nodes):
            size = findings[node.node_id].shared_memory_bytes
            if size is not None and size < needed:
                what = f"shared memory has {size >> 20} MiB (/dev/shm), and vLLM's ranks need {needed >> 20} MiB"
                hint = "give the container some GiB: --shm-size of docker and podman, a pod's volume of medium Memory"
                what = f"node {node.hostname or node.address}: {what}"
                yield Problem(where=f"models[{index}].split", what=what, hint=hint)


def _needs(shape: GangShape) -> Iterator[tuple[str, str, str]]:
    """Yield abilities that an environment may lack: name, place in the model's entry, and words."""
    if shape.num_nodes > 1:
        yield "nodes", "engine", "span several nodes"
    if shape.data > 1:
        yield "data", "split.data", "divide requests among data parts"
    if shape.expert:
        yield "expert", "split.expert", "divide whole experts"


def _host_problems(findings: Mapping[str, NodeFindings]) -> list[Problem]:
    what = "; ".join(found.host_problem for found in findings.values() if found.host_problem)
    hint = "write an address that every node has: 127.0.0.1, or 0.0.0.0 for all"
    return [Problem(where="gateway.host", what=what, hint=hint)] if what else []


def _secret_problems(findings: Mapping[str, NodeFindings]) -> list[Problem]:
    """Return the problems of files that gateways are to read: each node needs them, at the same place."""
    named = {
        "gateway.tls": [f"node {f.hostname}: {f.tls_problem}" for f in findings.values() if f.tls_problem],
        "gateway.redis": [f"node {f.hostname}: {f.redis_problem}" for f in findings.values() if f.redis_problem],
        "gateway.sign_in": [f"node {f.hostname}: {f.sign_in_problem}" for f in findings.values() if f.sign_in_problem],
    }
    hint = "put it on every node, readable by the user who runs the cluster"
    return [Problem(where=where, what="; ".join(found), hint=hint) for where, found in named.items() if found]
