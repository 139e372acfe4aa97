"""Tests of TGI's adapter: command lines against golden files, the user's folder, and a double of the launcher.

``LONGBOAT_UPDATE_GOLDEN=1 pytest tests/engines/test_tgi.py`` rewrites the golden files.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_vllm import gang

from longboat.core.errors import UserInputError
from longboat.core.plan import GangPlan
from longboat.core.states import Phase
from longboat.engines.contract import EngineEnvironment, EngineLoad
from longboat.engines.environments.environment import environment_at, find_environment
from longboat.engines.fleet_checks import engine_problems
from longboat.engines.tgi.adapter import LAUNCHER, TgiAdapter
from longboat.spec.files.load import load_fleet

GOLDEN = Path(__file__).parent / "golden"
ENVIRONMENT = EngineEnvironment(
    kind="tgi", python=f"/srv/tgi/bin/{LAUNCHER}", distribution=LAUNCHER, version="0", platform="cuda", fingerprint="f"
)
DEADLINE_S = 20.0


def one_host(plan: GangPlan) -> GangPlan:
    (rank,) = plan.ranks
    return replace(plan, ranks=(replace(rank, ports={"api": 9000, "metrics": 9001, "master": 9002}),))


CASES = {
    "single": one_host(gang(gpus=1.0)),
    "tensor4": one_host(gang(tensor=4, gpus=1.0)),
    "hub-model": replace(one_host(gang(gpus=1.0)), source="hf:org/name", model_path="org/name", context_tokens=None),
    "own-words": replace(one_host(gang()), extra_args=("--max-input-tokens=512", "--quantize", "awq")),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_command_equals_its_golden_file(name: str) -> None:
    golden = GOLDEN / f"tgi-{name}.txt"
    command = TgiAdapter().command(CASES[name], 0, ENVIRONMENT, "")
    lines = [f"{key}={value}" if value is not None else f"unset {key}" for key, value in command.env.items()]
    text = "\n".join([*lines, " ".join(command.argv).replace(" --", " \\\n    --"), ""])
    if os.environ.get("LONGBOAT_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_longest_prompt_is_given_once_under_either_name() -> None:
    plan = replace(CASES["single"], extra_args=("--max-input-length", "512"))
    assert "--max-input-tokens" not in TgiAdapter().command(plan, 0, ENVIRONMENT, "").argv


def test_secret_is_in_the_environment_only() -> None:
    command = TgiAdapter().command(CASES["single"], 0, ENVIRONMENT, "")
    assert command.env["API_KEY"] == "secret"
    assert not any("secret" in word for word in command.argv)


@pytest.mark.parametrize(
    ("model", "where", "hint"),
    [
        ("split: {pipeline: 2}", "models[0].split.pipeline", "pipeline: 1"),
        ("placement: {nodes: 2}", "models[0].placement.nodes", "nodes: 1"),
        (
            "engine: {kind: tgi, environment: /o, args: [--port, '1']}",
            "models[0].engine.args[0]",
            "a free port is found",
        ),
        (
            "engine: {kind: tgi, environment: /o, args: [--num-shard=2]}",
            "models[0].engine.args[0]",
            "split: {tensor: N}",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(model: str, where: str, hint: str) -> None:
    engine = "" if "engine:" in model else "engine: {kind: tgi, environment: /srv/tgi}, "
    fleet = load_fleet(f"models: [{{source: /models/m, name: m, {engine}{model}}}]", "fleet.yaml")
    (problem,) = engine_problems(fleet)
    assert problem.where == where
    assert hint in problem.hint


def test_folder_without_the_launcher_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=LAUNCHER):
        environment_at("tgi", tmp_path)
    with pytest.raises(UserInputError, match="no package holds tgi") as caught:
        find_environment("tgi", version=None, path=None, home=tmp_path)
    assert "environment: /srv/tgi" in caught.value.hint


def test_phases_are_read_from_the_log() -> None:
    adapter = TgiAdapter()
    assert adapter.phase_of("INFO shard-manager: Starting shard rank=0") is Phase.LOADING
    assert adapter.phase_of("INFO shard-manager: Shard ready in 10s rank=0") is Phase.WARMING
    assert adapter.phase_of("anything else") is None


@pytest.fixture
def double(tmp_path: Path) -> Iterator[tuple[GangPlan, str]]:
    """The double of the launcher, started as the adapter says, and its address."""
    program = tmp_path / "bin" / LAUNCHER
    program.parent.mkdir()
    text = (Path(__file__).parent / "tgi_double.py").read_text()
    program.write_text(text.replace("/usr/bin/env python3", sys.executable, 1))
    program.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plan = one_host(gang())
    rank = replace(plan.head, address="127.0.0.1", ports={**plan.head.ports, "api": port})
    plan = replace(plan, ranks=(rank,))
    command = TgiAdapter().command(plan, 0, environment_at("tgi", tmp_path), "")
    env = {**os.environ, **{name: value for name, value in command.env.items() if value is not None}}
    process = subprocess.Popen(command.argv, env=env, stdout=subprocess.PIPE)
    url = f"http://127.0.0.1:{port}"
    wait_for(f"{url}/health")
    yield plan, url
    process.kill()
    process.communicate()
    shutil.rmtree(tmp_path / "bin")


def wait_for(url: str) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(url) as answer:
                assert answer.status == 200
                return
        except urllib.error.URLError:
            assert time.monotonic() < until_s
            time.sleep(0.05)


def test_double_answers_the_probe_and_shows_its_load(double: tuple[GangPlan, str]) -> None:
    plan, url = double
    adapter = TgiAdapter()
    probe = adapter.probe(plan)
    request = urllib.request.Request(url + probe.path, data=probe.body, headers=dict(probe.headers))
    with urllib.request.urlopen(request) as answer:
        assert b"generated_text" in answer.read()
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    expected = EngineLoad(num_running=3, num_waiting=2, prompt_tokens_total=17, generation_tokens_total=40)
    assert adapter.load(text) == expected
    assert adapter.capacity(plan) == 128


@pytest.mark.parametrize(
    ("args", "capacity"),
    [
        (("--max-concurrent-requests", "64"), 64),
        (("--max-concurrent-requests=64", "--max-concurrent-requests", "32"), 32),
        (("--max-concurrent-requests", "\u00b2"), 128),
        (("--max-concurrent-requests",), 128),
    ],
)
def test_requests_at_once_are_those_that_the_file_gives_last(args: tuple[str, ...], capacity: int) -> None:
    assert TgiAdapter().capacity(replace(CASES["single"], extra_args=args)) == capacity
