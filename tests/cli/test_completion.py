"""Names that the shell completes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from longboat.cli.app import app
from longboat.cli.completion import names as completion
from longboat.cli.completion.names import complete_model, complete_tenant, models_in, replicas_in, tenants_in
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet

REPORT = {"counts": {"b": {}}, "replicas": [{"model": "a", "replica": "a-1"}, {"model": "a", "replica": "a-2"}]}


def test_models_and_replicas_of_a_report_are_named_once() -> None:
    assert models_in(REPORT) == ["a", "b"]
    assert replicas_in(REPORT) == ["a-1", "a-2"]


def test_nothing_is_completed_where_no_fleet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path))
    assert complete_model("a") == complete_tenant("a") == []


@pytest.mark.parametrize(
    ("gateway", "names"),
    [
        ("{auth: keys, tenants: [{name: web}, {name: batch, weight: 2.0}]}", ["batch", "web"]),
        ("{auth: keys}", ["default"]),
        ("{port: 8000}", []),
    ],
    ids=["named", "default", "without_keys"],
)
def test_tenants_are_those_of_the_running_file(gateway: str, names: list[str]) -> None:
    fleet = load_fleet(f"models: [{{source: 'builtin:tiny'}}]\ngateway: {gateway}\n", "fleet.yaml")
    assert tenants_in({"document": dump_fleet(fleet)}) == names


@pytest.mark.parametrize(
    "document",
    ["", "- 1", "gateway: 7", "gateway: {tenants: [x]}", "{"],
    ids=["empty", "list", "number", "text", "broken"],
)
def test_a_document_that_cannot_be_read_completes_nothing(document: str) -> None:
    assert tenants_in({"document": document}) == []


def test_the_shell_completes_models_that_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_report", lambda: {"counts": {"a": {}, "b": {}}, "started": {"b": {"by": "x"}}})
    given = {"_LONGBOAT_COMPLETE": "complete_bash", "COMP_WORDS": "longboat stop ", "COMP_CWORD": "2"}
    assert CliRunner().invoke(app, env=given, prog_name="longboat").stdout.split() == ["b"]


@pytest.mark.parametrize("words", ["keys create --tenant w", "adapters add chat /a -t w"], ids=["keys", "adapters"])
def test_the_shell_completes_tenants(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"document": "gateway: {auth: keys, tenants: [{name: web}, {name: batch}]}"}
    monkeypatch.setattr(completion, "_report", lambda: report)
    given = {
        "_LONGBOAT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"longboat {words}",
        "COMP_CWORD": str(words.count(" ") + 1),
    }
    done = CliRunner().invoke(app, env=given, prog_name="longboat")
    assert done.stdout.split() == ["web"]
