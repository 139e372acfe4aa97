"""What every engine's adapter must keep to: those that come with Longboat, and one of an installed package."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from mlx_package import install_package
from test_vllm import gang

from longboat import engine_names
from longboat.core.errors import UserInputError
from longboat.core.plan import GangPlan
from longboat.engines import registry
from longboat.engines.contract import Ability, EngineAdapter, EngineEnvironment, EngineLoad
from longboat.engines.environments.engine_lock import lock_path, num_packages
from longboat.engines.fleet_checks import engine_problems
from longboat.engines.launch.keeper_command import engine_package
from longboat.spec.files.load import load_fleet

KINDS = (*engine_names.BUILT_IN, "mlx")


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MLX's package is installed, and its name is known."""
    folder = tmp_path_factory.mktemp("site")
    install_package(folder)
    sys.path.append(str(folder))
    forget_names()
    yield
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.startswith("longboat_mlx")]:
        del sys.modules[name]
    forget_names()


def forget_names() -> None:
    engine_names.engine_names.cache_clear()
    registry.adapter_for.cache_clear()


@pytest.fixture(params=KINDS)
def adapter(request: pytest.FixtureRequest) -> EngineAdapter:
    return registry.adapter_for(request.param)


def environment_of(adapter: EngineAdapter) -> EngineEnvironment:
    return EngineEnvironment(
        kind=adapter.kind, python="/env/bin/python", distribution="d", version="1", platform="cpu", fingerprint="f"
    )


def one_rank(adapter: EngineAdapter) -> GangPlan:
    plan = gang()
    ports = {port.purpose: 9000 + number for number, port in enumerate(adapter.ports(plan.shape))}
    return replace(plan, ranks=(replace(plan.ranks[0], ports=ports),))


def test_names_of_packages_come_after_those_of_longboat() -> None:
    assert engine_names.engine_names() == KINDS


def test_adapter_has_its_name_and_known_abilities(adapter: EngineAdapter) -> None:
    assert adapter.abilities <= set(get_args(Ability))
    assert adapter.kind in KINDS


def test_head_gets_a_port_for_the_api(adapter: EngineAdapter) -> None:
    assert [port.node_rank for port in adapter.ports(gang().shape) if port.purpose == "api"] == [0]


def test_command_is_the_same_each_time_and_shows_no_key(adapter: EngineAdapter) -> None:
    plan, environment = one_rank(adapter), environment_of(adapter)
    command = adapter.command(plan, 0, environment, "/overlay")
    assert command == adapter.command(plan, 0, environment, "/overlay")
    assert not any(plan.api_key in word for word in command.argv)
    assert plan.api_key in {value for value in command.env.values() if value}


def test_users_arguments_reach_the_command(adapter: EngineAdapter) -> None:
    plan = replace(one_rank(adapter), extra_args=("--of-the-user", "7"))
    words = " ".join(adapter.command(plan, 0, environment_of(adapter), "/overlay").argv)
    assert "--of-the-user" in words
    assert "7" in words


def test_probe_is_a_json_request_with_the_key(adapter: EngineAdapter) -> None:
    probe = adapter.probe(one_rank(adapter))
    assert json.loads(probe.body)
    assert "Bearer secret" in probe.headers.values()


def test_metrics_of_another_program_say_nothing(adapter: EngineAdapter) -> None:
    assert adapter.load("up 1\nnonsense{") == EngineLoad()
    assert adapter.counters("").num_ttft == 0


def test_recipe_has_a_lock_with_hashes_for_each_platform(adapter: EngineAdapter) -> None:
    for platform in adapter.recipe.distributions if adapter.recipe else ():
        lock = lock_path(adapter.kind, adapter.recipe.version, platform)  # type: ignore[union-attr]
        assert num_packages(lock) > 0
        assert lock.read_text().count("--hash=sha256:") >= num_packages(lock)
        assert adapter.recipe.free_bytes[platform] > 0  # type: ignore[union-attr]


def test_overlays_packages_exist_and_say_their_version(adapter: EngineAdapter) -> None:
    for name in adapter.overlay.packages if adapter.overlay else ():
        assert "__version__" in (engine_package(name) / "__init__.py").read_text()


@pytest.mark.parametrize(
    ("line", "ability"),
    [
        ("split: {tensor: 2}", "tensor"),
        ("split: {pipeline: 2}", "pipeline"),
        ("split: {pipeline: 2}, placement: {nodes: 2}", "nodes"),
        ("split: {pipeline: 2, layers: [2, 2]}", "layers"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_with_the_engines_that_can(
    adapter: EngineAdapter, line: str, ability: Ability
) -> None:
    fleet = load_fleet(f"models: [{{source: builtin:tiny, engine: {adapter.kind}, {line}}}]", "fleet.yaml")
    problems = [problem for problem in engine_problems(fleet) if ability in problem.where]
    assert bool(problems) is (ability not in adapter.abilities)
    for problem in problems:
        assert problem.where.startswith("models[0].")
        assert "vllm" in problem.hint


def test_package_whose_adapter_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "broken_engine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-engine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[longboat.engines]\nbroken = nowhere_at_all:Adapter\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_names()
    with pytest.raises(UserInputError, match="nowhere_at_all:Adapter"):
        registry.adapter_for("broken")
    with pytest.raises(UserInputError, match="unknown engine 'none'"):
        registry.adapter_for("none")
    forget_names()


def test_parts_of_a_gpu_are_for_replicas_of_one_rank_and_engines_that_keep_to_them() -> None:
    text = """models:
  - {name: a, source: builtin:tiny, split: {tensor: 2}, resources: {gpus: 0.5}}
  - {name: b, source: builtin:tiny, resources: {gpus: 0.25}, engine: {args: [--gpu-memory-utilization, "0.9"]}}
  - {name: c, source: builtin:tiny, resources: {gpus: 0.25}, engine: {args: [--gpu-memory-utilization=0.2]}}
  - {name: d, source: builtin:tiny, resources: {gpus: 0.5}, engine: {args: [--gpu_memory_utilization, "0.9"]}}
  - {name: e, source: builtin:tiny, resources: {gpus: 0.5}, engine: sglang}
"""
    first, second, third, fourth = engine_problems(load_fleet(text, "test", folder="/"))
    assert (first.where, second.where) == ("models[0].resources.gpus", "models[1].engine.args")
    assert "the ranks of one replica need a GPU each" in first.what
    assert "0.9 of a GPU's memory" in second.what
    assert (third.where, fourth.where) == ("models[3].engine.args", "models[4].resources.gpus")
    assert "sglang cannot be limited to a part of a GPU" in fourth.what
    assert second.hint == "leave it out (--gpu-memory-utilization 0.23 is set), or write at most 0.25"
