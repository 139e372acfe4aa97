"""From what nodes find to the problems of a fleet file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longboat.cluster.preflight.checks import EngineFinding, NodeFindings, PathFinding, PreflightRequest, inspect_node
from longboat.cluster.preflight.surroundings import CheckedPlan, UpOptions, checked_plan, this_machine
from longboat.core.errors import Problem, UserInputError
from longboat.core.topology import Node
from longboat.spec.files.load import load_fleet


def problems(text: str, **found: Any) -> tuple[Problem, ...]:
    """Of a fleet on a node that found this, and else nothing wrong."""

    def inspect(node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        known: dict[str, Any] = {"hostname": "one", "engines": dict.fromkeys(request.engines, EngineFinding())}
        return {node_id: NodeFindings(**{**known, **found}) for node_id in node_ids}

    with pytest.raises(UserInputError) as caught:
        checked_plan(load_fleet(text, "x"), [this_machine()], inspect)
    return caught.value.problems


def test_a_folder_without_a_model_is_refused_at_its_source() -> None:
    finding = PathFinding(exists=True, detail="it has no config.json")
    (problem,) = problems("models: [{source: /models/a, engine: fake}]", paths={"/models/a": finding})
    assert problem.where == "models[0].source"
    assert "no config.json" in problem.what


def test_an_environment_is_refused_once_in_the_words_of_the_engine() -> None:
    text = "models: [{source: 'builtin:tiny', engine: {environment: /opt/vllm}}]"
    (problem,) = problems(text, engines={"tiny": EngineFinding(problem="no Python at /opt/vllm/bin/python")})
    assert problem.where == "models[0].engine.environment"
    assert "no Python at /opt/vllm/bin/python" in problem.what


def test_a_host_is_refused_at_its_place() -> None:
    (problem,) = problems("builtin:tiny", host_problem="one knows no host 'x'")
    assert (problem.where, problem.what) == ("gateway.host", "one knows no host 'x'")


def test_an_interpreter_is_as_good_as_its_environment(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "vllm-0.32.0.dist-info").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    text = "models: [{{source: 'builtin:tiny', engine: {{environment: {}}}, resources: {{gpus: 0, cpus: 0.1}}}}]"
    for path in (tmp_path, tmp_path / "bin" / "python"):
        fleet = load_fleet(text.format(path), "x")
        plan = checked_plan(fleet, [this_machine()], lambda ids, request: {i: no_port(request) for i in ids})
        assert set(plan.shapes) == {"tiny"}


def no_port(request: PreflightRequest) -> NodeFindings:
    return inspect_node(PreflightRequest(paths=request.paths, engines=request.engines, gateway=None))


@pytest.mark.parametrize(
    ("found", "where"), [({"tls_problem": "no /c"}, "gateway.tls"), ({"redis_problem": "no /r"}, "gateway.redis")]
)
def test_a_file_that_a_gateway_needs_is_missed_on_its_node(found: dict[str, str], where: str) -> None:
    (problem,) = problems("builtin:tiny", **found)
    assert problem.where == where
    assert problem.what == f"node one: {next(iter(found.values()))}"


def checked(text: str, **wish: Any) -> CheckedPlan:
    """Of a fleet on a node with two CPUs and 24 GiB on which all is well."""

    def inspect(node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        engines = dict.fromkeys(request.engines, EngineFinding(platform="cpu"))
        return {name: NodeFindings(hostname="one", engines=engines, memory_bytes=24 << 30) for name in node_ids}

    node = Node(node_id="n", address="10.0.0.1", num_cpus=2, memory_bytes=16 << 30)
    return checked_plan(load_fleet(text, "x"), [node], inspect, options=UpOptions(**wish))


def test_what_is_left_to_decide_has_numbers_afterwards() -> None:
    found = checked("models: [{source: 'builtin:tiny', split: auto, replicas: auto}]")
    assert found.fleet.models[0].num_replicas == 2
    assert found.shapes["tiny"].reason.startswith("best of ")
    assert found.decision.forecasts["tiny"].outcome is not None


def test_what_cannot_fit_is_refused_and_can_be_forced() -> None:
    text = "models: [{source: 'builtin:random-1b', context: 8192}]"
    with pytest.raises(UserInputError, match="one request of 8192 tokens") as caught:
        checked(text)
    assert caught.value.problems[0].where == "models[0].context"
    forced = checked(text, force=True)
    assert [problem.where for problem in forced.overridden] == ["models[0].context"]
    assert set(forced.shapes) == {"random-1b"}


def test_what_nobody_can_decide_cannot_be_forced() -> None:
    with pytest.raises(UserInputError, match="auto needs the model's layers"):
        checked("models: [{source: 'hf:a/b', split: auto}]", force=True)


@pytest.mark.parametrize(
    ("split", "shm_mib", "is_refused"),
    [
        ("tensor: 2", 64, True),
        ("tensor: 2", 240, True),  # a worker's queue is a little larger
        ("tensor: 2", 241, False),
        ("tensor: 2, data: 2", 64, True),
        ("data: 2", 64, False),
        ("tensor: 1", 64, False),
    ],
)
def test_ranks_of_one_node_need_shared_memory(split: str, shm_mib: int, is_refused: bool) -> None:
    def inspect(node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        engines = dict.fromkeys(request.engines, EngineFinding(platform="cpu", version="0.32.0"))
        return {i: NodeFindings(hostname="one", engines=engines, shared_memory_bytes=shm_mib << 20) for i in node_ids}

    node = Node(node_id="n", address="10.0.0.1", hostname="one", num_cpus=4, memory_bytes=16 << 30)
    fleet = load_fleet(f"models: [{{source: 'builtin:tiny', split: {{{split}}}}}]", "x")
    with pytest.raises(UserInputError) if is_refused else nullcontext() as caught:
        checked_plan(fleet, [node], inspect)
    if caught is not None:
        (problem,) = caught.value.problems
        told = f"node one: shared memory has {shm_mib} MiB (/dev/shm), and vLLM's ranks need 241 MiB"
        assert problem.what == told
        assert "--shm-size" in problem.hint


def test_two_models_share_a_processor_and_a_third_is_refused() -> None:
    """The planner packs parts of a CPU, and refuses what is beyond one before anything starts."""
    half = "{{source: builtin:tiny, name: {}, resources: {{cpus: 0.5}}}}"
    node = replace(this_machine(), num_cpus=1.0)

    def plan(*names: str) -> CheckedPlan:
        fleet = load_fleet(f"models: [{', '.join(half.format(name) for name in names)}]", "x")
        found = EngineFinding(platform="cpu", version="0.32.0")

        def inspect(node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
            return {i: NodeFindings(hostname="one", engines=dict.fromkeys(request.engines, found)) for i in node_ids}

        return checked_plan(fleet, [node], inspect)

    assert set(plan("a", "b").shapes) == {"a", "b"}
    with pytest.raises(UserInputError) as caught:
        plan("a", "b", "c")
    (problem,) = caught.value.problems
    assert problem.where.startswith("models[2]")
    assert "CPU" in problem.what
