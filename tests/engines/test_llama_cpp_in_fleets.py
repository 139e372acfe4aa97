"""What a fleet file may ask of llama.cpp, and what is planned of a GGUF file, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longboat.builtin import ensure_as_gguf
from longboat.cluster.host.facts import model_folder
from longboat.cluster.preflight.checks import EngineFinding, PreflightRequest, inspect_node
from longboat.cluster.preflight.surroundings import CheckedPlan, checked_plan
from longboat.core.errors import ClusterError, Problem, UserInputError
from longboat.core.topology import Node
from longboat.engines.fleet_checks import engine_problems
from longboat.spec.files.load import load_fleet

NODES = tuple(
    Node(
        node_id=name,
        address=f"10.0.0.{number}",
        hostname=name,
        num_cpus=4.0,
        num_gpus=0.0,
        memory_bytes=8 << 30,
        is_head=number == 1,
    )
    for number, name in enumerate("ab", 1)
)
BOTH = EngineFinding(platform="cpu", version="2026.10.11549")


def problems(model: str) -> list[Problem]:
    return engine_problems(load_fleet(f"models: [{model}]", "fleet.yaml"))


def planned(model: str, finding: EngineFinding = BOTH) -> CheckedPlan:
    """Plan for two nodes that have the engine."""

    def inspect(node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        found = inspect_node(replace(request, engines={}, gateway=None))
        return {node: replace(found, engines=dict.fromkeys(request.engines, finding)) for node in node_ids}

    return checked_plan(load_fleet(f"models: [{model}]", "fleet.yaml"), NODES, inspect)


def refused(model: str, finding: EngineFinding = BOTH) -> list[Problem]:
    with pytest.raises(UserInputError) as caught:
        planned(model, finding)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("model", "where", "what", "hint"),
    [
        ("{source: /m/a.gguf}", "models[0].source", "vllm cannot do this: /m/a.gguf is a GGUF", "llama.cpp"),
        ("{source: 'hf:o/n:a.gguf'}", "models[0].source", "vllm cannot do this: hf:o/n:a.gguf", "llama.cpp"),
        ("{source: /m/a, engine: llama.cpp}", "models[0].source", "one GGUF file", "/m/a/FILE.gguf"),
        ("{source: 'hf:o/n', engine: llama.cpp}", "models[0].source", "one GGUF file", "hf:o/n:FILE.gguf"),
        (
            "{source: /m/a.gguf, engine: llama.cpp, split: {tensor: 2}}",
            "models[0].split.tensor",
            "llama.cpp cannot do this: tensor: 2",
            "write tensor: 1",
        ),
        (
            "{source: /m/a.gguf, engine: {kind: llama.cpp, args: [--host, x]}}",
            "models[0].engine.args[0]",
            "--host is set by Longboat",
            "gateway's host",
        ),
    ],
    ids=str,
)
def test_what_an_engine_cannot_do_is_refused(model: str, where: str, what: str, hint: str) -> None:
    (problem,) = problems(model)
    assert problem.where == where
    assert what in problem.what
    assert hint in problem.hint


@pytest.mark.parametrize("source", ["/m/a.gguf", "hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf", "builtin:tiny"])
def test_llama_cpp_takes_files(source: str) -> None:
    assert problems(f"{{source: '{source}', engine: llama.cpp}}") == []


def test_a_file_s_name_is_the_model_s() -> None:
    fleet = load_fleet("models: [{source: 'hf:o/n:Qwen3-0.6B-Q8_0.gguf', engine: llama.cpp}]", "fleet.yaml")
    assert fleet.models[0].name == "Qwen3-0.6B-Q8_0"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_as_gguf("builtin:tiny", tmp_path_factory.mktemp("home"))


def test_a_file_is_planned_from_its_header(file: Path) -> None:
    found = planned(f"{{source: {file}, name: t, engine: llama.cpp, split: {{pipeline: 2}}}}")
    assert found.shapes["t"].num_nodes == 2
    assert found.shapes["t"].layers == (2, 2)
    assert found.decision.forecasts["t"]


def test_the_layers_of_the_file_stay_as_they_are_written(file: Path) -> None:
    model = f"{{source: {file}, name: t, engine: llama.cpp, split: {{pipeline: 2, layers: [1, 3]}}}}"
    assert planned(model).shapes["t"].layers == (1, 3)


def test_more_layers_or_tokens_than_the_file_has_are_refused(file: Path) -> None:
    (problem,) = refused(f"{{source: {file}, name: t, engine: llama.cpp, split: {{pipeline: 2, layers: [1, 9]}}}}")
    assert "the model has 4" in problem.what
    (problem,) = refused(f"{{source: {file}, name: t, engine: llama.cpp, context: 9999999}}")
    assert "the model's 4096" in problem.what


def test_a_file_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    (problem,) = refused(f"{{source: {tmp_path}/none.gguf, name: t, engine: llama.cpp}}")
    assert "is missing on a" in problem.what
    (tmp_path / "bad.gguf").write_bytes(b"GGML and more")
    (problem,) = refused(f"{{source: {tmp_path}/bad.gguf, name: t, engine: llama.cpp}}")
    assert "instead of GGUF" in problem.what


def test_nodes_without_the_built_programs_take_no_part_in_a_gang(file: Path) -> None:
    lacking = replace(BOTH, lacks={"nodes": "install a C++ compiler"})
    found = refused(f"{{source: {file}, name: t, engine: llama.cpp, split: {{pipeline: 2}}}}", lacking)
    assert [problem.where for problem in found] == ["models[0].engine"] * 2
    assert "cannot span several nodes" in found[0].what
    assert planned(f"{{source: {file}, name: t, engine: llama.cpp}}", lacking).shapes


def test_an_agent_gives_each_engine_what_it_reads(tmp_path: Path, file: Path) -> None:
    assert model_folder("builtin:tiny", tmp_path, "llama.cpp").endswith(".gguf")
    assert Path(model_folder("builtin:tiny", tmp_path, "vllm")).is_dir()
    assert model_folder(str(file), tmp_path, "llama.cpp") == str(file)
    assert model_folder("hf:o/n:a.gguf", tmp_path, "llama.cpp") == "o/n:a.gguf"
    with pytest.raises(ClusterError, match="no file"):
        model_folder(str(tmp_path), tmp_path, "llama.cpp")


def test_the_planner_splits_by_layers_only(file: Path) -> None:
    found = planned(f"{{source: {file}, name: t, engine: llama.cpp, split: auto, replicas: auto, load: {{users: 4}}}}")
    (model,) = found.fleet.models
    assert model.parts.tensor == 1
    assert isinstance(model.replicas, int)
