"""Mistakes in the fleet file: each gets its own clear error, exit code 2, and nothing is started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from cli.cli_process import Done, runner
from fleet.fleet_lab import FleetLab

MODEL = "{name: a, source: 'builtin:tiny', engine: fake%s}"

MISTAKES = {
    "unknown field": ("models: [{name: a, source: 'builtin:tiny', replica: 2}]", "models[0].replica", "replicas"),
    "wrong type": ("models: [{source: 'builtin:tiny', replicas: two}]", "models[0].replicas", "number"),
    "split that does not divide the heads": (
        "models: [{source: 'builtin:tiny', split: {tensor: 3}}]",
        "models[0].split.tensor",
        "write",
    ),
    "more pipeline stages than layers": (
        "models: [{source: 'builtin:tiny', split: {pipeline: 64}}]",
        "models[0].split.pipeline",
        "layers",
    ),
    "missing model path": ("models: [{source: /no/such/model, engine: fake}]", "models[0].source", "/no/such/model"),
    "relative model path": ("models: [{source: ./model, engine: fake}]", "models[0].source", "absolute"),
    "unknown built-in model": ("models: [{source: 'builtin:tinny', engine: fake}]", "models[0].source", "tiny"),
    "no such node label": (
        "models: [{source: 'builtin:tiny', engine: fake, placement: {labels: {zone: moon}}}]",
        "models[0].placement",
        "zone",
    ),
    "more GPUs than exist": (
        "models: [{source: 'builtin:tiny', engine: fake, resources: {gpus: 1}, replicas: 9}]",
        "models[0]",
        "GPU",
    ),
    "more CPUs than exist": (
        "models: [{source: 'builtin:tiny', engine: fake, resources: {cpus: 1000}}]",
        "models[0]",
        "CPU",
    ),
    "context beyond the model": (
        "models: [{source: 'builtin:tiny', context: 9999999}]",
        "models[0].context",
        "",
    ),
    "two models of one name": ("models: ['builtin:tiny', 'builtin:tiny']", "models", "name"),
    "a flag that Longboat sets": (
        "models: [{source: 'builtin:tiny', engine: {kind: vllm, args: [--port, '1']}}]",
        "models[0].engine.args",
        "gateway's host and port",
    ),
    "an engine that is not installed": (
        "models: [{source: 'builtin:tiny', engine: {kind: vllm, version: 9.9.9}}]",
        "models[0].engine",
        "longboat engines install",
    ),
    "an address open to all": ("models: ['builtin:tiny']\ngateway: {host: 0.0.0.0}", "gateway", "auth: none"),
    "something for later": (
        "models: [{source: 'builtin:tiny', split: {prefill: 1}}]",
        "models[0].split.prefill",
        "not yet",
    ),
    "another way to count": (
        "models: [{source: 'builtin:tiny', min_replicas: 1}]",
        "models[0].min_replicas",
        "replicas: {min: 1",
    ),
    "YAML that is none": ("models: [", "", "line"),
    "another apiVersion": ("apiVersion: longboat/v9\nmodels: ['builtin:tiny']", "apiVersion", "longboat/v1"),
}


@pytest.fixture
def bare_lab(tmp_path: Path) -> Iterator[FleetLab]:
    lab = FleetLab(tmp_path, env={"LONGBOAT_HOME": str(tmp_path / "home")})
    yield lab
    if lab.processes():
        lab.end()


@pytest.fixture
def longboat(
    bare_lab: FleetLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """The command line in this process, in the lab's folders."""
    for name in ("LONGBOAT_RUN", "LONGBOAT_HOME"):
        monkeypatch.setenv(name, bare_lab.env[name])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return runner(monkeypatch, capsys)


def assert_refused(done: Done | CompletedProcess[str], lab: FleetLab, *words: str) -> None:
    """A clear error, exit code 2, and nothing is started."""
    assert done.returncode == 2, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr
    assert "→" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (lab.folder / "node.json").exists()
    assert not (lab.folder / "ray").exists()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_before_anything_is_started(
    longboat: Callable[..., Done], bare_lab: FleetLab, name: str
) -> None:
    text, where, words = MISTAKES[name]
    path = bare_lab.folder / "fleet.yaml"
    path.write_text(text)
    assert_refused(longboat("up", str(path), "--detach"), bare_lab, where, words)


def test_a_folder_without_a_model_is_refused(longboat: Callable[..., Done], bare_lab: FleetLab) -> None:
    (bare_lab.folder / "model").mkdir()
    path = bare_lab.write(f"models: [{{source: {bare_lab.folder / 'model'}, engine: fake}}]")
    assert_refused(longboat("up", path), bare_lab, "models[0].source", "no config.json")


def test_a_host_that_nobody_knows_is_refused(longboat: Callable[..., Done], bare_lab: FleetLab) -> None:
    path = bare_lab.folder / "fleet.yaml"
    path.write_text("models: ['builtin:tiny']\ngateway: {host: no-such-host.invalid, auth: none}")
    assert_refused(longboat("up", str(path)), bare_lab, "gateway.host", "no-such-host.invalid")


def test_a_port_in_use_is_refused_before_anything_is_started(bare_lab: FleetLab) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", bare_lab.port))
        taken.listen()
        done = bare_lab.cli("up", bare_lab.write("models: [{source: 'builtin:tiny', engine: fake}]"), "--detach")
    assert_refused(done, bare_lab, "gateway.port", f"port {bare_lab.port} is in use")


def test_a_missing_file_names_the_nearest(bare_lab: FleetLab) -> None:
    (bare_lab.folder / "fleet.yaml").write_text("builtin:tiny")
    assert_refused(bare_lab.cli("up", "flet.yaml"), bare_lab, "fleet.yaml")


def test_all_mistakes_of_a_file_are_told_at_once(bare_lab: FleetLab) -> None:
    path = bare_lab.folder / "fleet.yaml"
    path.write_text(
        "name: Bad Name\nmodels: [{source: 'builtin:tiny', replicas: -1}]\ngateway: {port: 99999, host: 0.0.0.0}"
    )
    done = bare_lab.cli("up", str(path))
    assert_refused(done, bare_lab, "name", "models[0].replicas", "gateway.port", "auth: none")
