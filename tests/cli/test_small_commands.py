"""Commands of the guides that need neither a fleet nor an engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.cli_process import Done
from engines.test_environment import make_environment
from longboat.cli.node.commands import _stay, show_record
from longboat.cluster.host.record import ClusterRecord, save_record
from longboat.spec.files.load import load_fleet

Longboat = Callable[..., Done]


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without engines and without a fleet."""
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_schema_is_printed_for_editors(longboat: Longboat) -> None:
    schema = json.loads(longboat("schema").stdout)
    assert {"RoutingSpec", "AdapterSpec"} <= set(schema["$defs"])


@pytest.mark.parametrize(("parts", "has_pages"), [("", False), ("1", True)])
def test_a_head_names_rays_dashboard_only_where_it_has_pages(
    parts: str, has_pages: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGBOAT_RAY_DASHBOARD", parts)
    record = ClusterRecord(
        role="head",
        address="10.0.0.1",
        interface="eth0",
        gcs_address="10.0.0.1:6379",
        dashboard="10.0.0.1:8265",
        run="/run/x",
        temp_dir="/tmp/x",
        token_file="/t",
    )
    show_record(record)
    shown = capsys.readouterr().out
    assert ("http://10.0.0.1:8265" in shown) == has_pages
    assert "longboat node start --join 10.0.0.1 --token-file FILE" in shown


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[ClusterRecord]:
    """A node that this process keeps. Its handlers of signals are put back."""
    record = ClusterRecord(
        role="worker",
        address="",
        interface="",
        gcs_address="",
        run=str(tmp_path),
        temp_dir="",
        token_file="",
        phase="up",
    ).with_runner(os.getpid())
    save_record(record)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield record
    for number, handler in before.items():
        signal.signal(number, handler)


def test_service_of_a_node_outlives_a_pause_of_its_own(kept: ClusterRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a process keeps the node is counted in looks: a service that was stopped for a minute had none."""
    monotonic, pauses = time.monotonic, []

    def pause(_seconds: float) -> None:
        pauses.append(60.0)
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + sum(pauses))
        if len(pauses) == 3:
            save_record(replace(kept, phase="stopping"))

    monkeypatch.setattr(time, "sleep", pause)
    _stay(kept)
    assert len(pauses) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_leaves_no_half_of_a_node(
    kept: ClusterRecord, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    done: list[str] = []

    def stop(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        done.append("stopped")

    monkeypatch.setattr("longboat.cluster.host.ray_node.stop_node", stop)
    monkeypatch.setattr(time, "sleep", lambda _: os.kill(os.getpid(), number))
    with contextlib.suppress(KeyboardInterrupt):
        _stay(kept)
    assert done == ["stopped"]


def test_engines_of_an_empty_machine(longboat: Longboat) -> None:
    assert json.loads(longboat("engines", "list", "--json").stdout) == []
    done = longboat("engines", "python", "vllm")
    assert done.returncode == 2
    assert "longboat engines install vllm" in done.stderr


@pytest.mark.parametrize(
    "command", [("node", "start", "--head"), ("weights", "share"), ("weights", "pull", "s3://b/m")]
)
@pytest.mark.parametrize("port", ["65536", "99999", "-5"])
def test_a_port_that_no_machine_has_is_refused(longboat: Longboat, command: tuple[str, ...], port: str) -> None:
    done = longboat(*command, "--port", port)
    assert done.returncode == 2
    limit = "below 0, the smallest value" if command[0] == "weights" else "below 1, the smallest value"
    assert f"'--port': {port} is {limit if port == '-5' else 'above 65535, the largest value'}" in done.stderr


def test_fewer_than_no_lines_of_a_log_are_refused(longboat: Longboat) -> None:
    done = longboat("logs", "tiny", "-n", "-1")
    assert done.returncode == 2
    assert "-1 is below 0, the smallest value" in done.stderr


def test_first_file_is_written_once_and_can_be_loaded(longboat: Longboat, empty_machine: Path) -> None:
    words = ("init", "fleet.yaml", "--yes", "--on", "1x(2xRTX4090)")
    assert longboat(*words).returncode == 0
    (model,) = load_fleet((empty_machine / "fleet.yaml").read_text(), "fleet.yaml").models
    assert model.source.startswith("hf:")
    assert longboat(*words).returncode == 2, "it writes over no file"


def test_first_file_names_the_machines_it_was_made_for(longboat: Longboat, empty_machine: Path) -> None:
    done = longboat("init", "fleet.yaml", "--yes", "--on", "1x(2xRTX4090)")
    assert "longboat check fleet.yaml --on '1x(2xRTX4090)'" in done.stdout
    assert "longboat check FILE --on '1x(2xRTX4090)'" in (empty_machine / "fleet.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param((".", "--force"), "error: . is a folder\n  → name the file to write: fleet.yaml", id="a folder"),
        pytest.param(
            ("x.yaml", "--model", "/no/such"), "error: no folder /no/such here", id="a model that is not here"
        ),
    ],
)
def test_first_file_is_refused_with_a_way_out(
    longboat: Longboat, empty_machine: Path, words: tuple[str, ...], told: str
) -> None:
    done = longboat("init", "--yes", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert not list(empty_machine.glob("*.yaml"))


@pytest.mark.parametrize("model", ["/models/my #1", "/models/123", "hf:org/1.5", "/models/a: b", '/models/"a"'])
@pytest.mark.parametrize("host", ["::", "127.0.0.1"])
def test_first_file_has_each_word_as_it_was_given(
    longboat: Longboat, empty_machine: Path, model: str, host: str
) -> None:
    words = ("init", "fleet.yaml", "--yes", "--on", "1x(2xRTX4090)", "--model", model, "--host", host)
    assert longboat(*words).returncode == 0
    fleet = load_fleet((empty_machine / "fleet.yaml").read_text(), "fleet.yaml")
    assert (fleet.models[0].source, fleet.gateway.host) == (model, host)


def test_model_of_other_machines_need_not_be_here(longboat: Longboat, empty_machine: Path) -> None:
    words = ("init", "fleet.yaml", "--yes", "--on", "1x(2xRTX4090)", "--model", "/no/such")
    assert longboat(*words).returncode == 0
    assert "source: /no/such" in (empty_machine / "fleet.yaml").read_text()


ODD_CARDS = "1x(1xRTX3090), 1x(1xRTX4060Ti), net=10GbE"


@pytest.mark.parametrize(
    ("model", "source", "engine"),
    [
        pytest.param("gpt-oss:20b", "hf:openai/gpt-oss-20b", "vllm", id="a name of Ollama"),
        pytest.param("Qwen3-32B", "hf:Qwen/Qwen3-32B-AWQ", "vllm", id="files that fit"),
        pytest.param("/models/Qwen3-32B", "/models/Qwen3-32B", "vllm", id="a folder like a name"),
        pytest.param("/models/q.gguf", "/models/q.gguf", "llama.cpp", id="a GGUF file"),
        pytest.param("hf:a/b-GGUF:c.gguf", "hf:a/b-GGUF:c.gguf", "llama.cpp", id="a GGUF file of the hub"),
    ],
)
def test_first_file_has_the_source_and_the_engine_that_a_model_needs(
    longboat: Longboat, empty_machine: Path, model: str, source: str, engine: str
) -> None:
    done = longboat("init", "fleet.yaml", "--yes", "--on", ODD_CARDS, "--model", model)
    assert done.returncode == 0, done.stderr
    (written,) = load_fleet((empty_machine / "fleet.yaml").read_text(), "fleet.yaml").models
    assert (written.source, written.engine.kind) == (source, engine)
    assert f"longboat engines install {engine} " in done.stdout


@pytest.mark.parametrize(
    ("model", "told"),
    [
        pytest.param("hf:Qwen/Qwen3-32B", "--model hf:Qwen/Qwen3-32B-AWQ fits", id="too large as stored"),
        pytest.param("llama3.3", "plans llama3.3 as meta-llama/Llama-3.1-70B-Instruct", id="another model"),
        pytest.param("hf:a/b-GGUF", "name one of its files: hf:a/b-GGUF:FILE.gguf", id="a repository of GGUF files"),
        pytest.param("hf:meta-llama/Llama-3.1-70B-Instruct", "(options of longboat plan)", id="too large in any way"),
    ],
)
def test_first_file_is_refused_with_a_model_that_would_do(
    longboat: Longboat, empty_machine: Path, model: str, told: str
) -> None:
    done = longboat("init", "fleet.yaml", "--yes", "--on", ODD_CARDS, "--model", model)
    assert done.returncode == 2
    assert told in done.stderr


def test_first_file_asks_for_no_engine_that_is_installed(longboat: Longboat, empty_machine: Path) -> None:
    words = ("init", "fleet.yaml", "--yes", "--force", "--model", "builtin:tiny")
    assert "longboat engines install vllm" in longboat(*words).stdout
    make_environment(Path(os.environ["LONGBOAT_HOME"]) / "engines" / "vllm-0.32.0-cpu", "vllm-0.32.0")
    assert "engines install" not in longboat(*words).stdout


def test_backup_of_nothing_is_an_error_and_no_file(longboat: Longboat, empty_machine: Path) -> None:
    done = longboat("backup", "boat.tar.gz")
    assert done.returncode == 2
    assert "there is nothing to back up" in done.stderr
    assert not (empty_machine / "boat.tar.gz").exists()


def test_archive_that_is_not_there_is_said_once(longboat: Longboat, empty_machine: Path) -> None:
    done = longboat("restore", "boat.tar.gz")
    assert "error: boat.tar.gz cannot be read: No such file or directory\n" in done.stderr


def test_request_is_not_explained_where_no_gateway_answers(longboat: Longboat) -> None:
    assert longboat("why", "req-1", "--url", "http://127.0.0.1:9").returncode == 3
    assert longboat("console", "--url", "http://127.0.0.1:9").returncode == 3


def test_plan_of_the_guide_to_experts(longboat: Longboat) -> None:
    load = ("--concurrency", "512", "--prompt-tokens", "2000", "--output-tokens", "1000")
    done = longboat("plan", "DeepSeek-V3", "--on", "2x(8xH100), net=8xNDR", *load)
    assert done.returncode == 0
    assert "DeepSeek-V3" in done.stdout


def test_usage_without_a_fleet_is_an_error(longboat: Longboat) -> None:
    assert longboat("usage", "--days", "30").returncode == 3
