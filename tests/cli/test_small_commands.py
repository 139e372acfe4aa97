"""Commands of the guides that need neither a fleet nor an engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_process import Done
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


def test_engines_of_an_empty_machine(longboat: Longboat) -> None:
    assert json.loads(longboat("engines", "list", "--json").stdout) == []
    done = longboat("engines", "python", "vllm")
    assert done.returncode == 2
    assert "longboat engines install vllm" in done.stderr


def test_first_file_is_written_once_and_can_be_loaded(longboat: Longboat, empty_machine: Path) -> None:
    words = ("init", "fleet.yaml", "--yes", "--on", "1x(2xRTX4090)")
    assert longboat(*words).returncode == 0
    (model,) = load_fleet((empty_machine / "fleet.yaml").read_text(), "fleet.yaml").models
    assert model.source.startswith("hf:")
    assert longboat(*words).returncode == 2, "it writes over no file"


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
