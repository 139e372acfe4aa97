"""Dashboards and alerts name only metrics and labels that gateways return; ``make check-alerts`` asks Prometheus."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from longboat.cli.app import app
from longboat.core.metric_list import METRICS
from longboat.dashboards.alert_list import ALERTS
from longboat.dashboards.boards import BOARDS
from longboat.dashboards.files import all_files
from longboat.dashboards.grafana import dashboard
from longboat.gateway.records.metrics import Metrics
from longboat.gateway.records.metrics_text import render

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import check_alerts

ROOT = Path(__file__).resolve().parents[2]

NAME = re.compile(r"longboat_(?:gateway|scaling|planner|node)_[a-z0-9_]+")
SELECTOR = re.compile(r"(longboat_(?:gateway|scaling|planner|node)_[a-z0-9_]+)\{([^}]*)\}")
BY = re.compile(r"by \(([a-z_, ]+)\)")
EXPRESSIONS = [alert.expr for alert in ALERTS] + [expr for b in BOARDS for p in b.panels for expr, _ in p.queries]
STORED = {name: metric for metric in METRICS for name in metric.series}
FROM_PROMETHEUS = {"instance", "job", "le"}


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_expressions_name_metrics_and_labels_that_exist(expr: str) -> None:
    names = NAME.findall(expr)
    assert names or expr.startswith("up{")
    labels = {label for name in names for label in STORED[name].labels} | FROM_PROMETHEUS
    for name, matchers in SELECTOR.findall(expr):
        assert set(re.findall(r"([a-z]+)=~?", matchers)) <= set(STORED[name].labels) | FROM_PROMETHEUS
    for group in BY.findall(expr):
        assert {label.strip() for label in group.split(",")} <= labels


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_counters_are_read_by_their_growth(expr: str) -> None:
    for name in NAME.findall(expr):
        if STORED[name].kind == "gauge":
            assert not re.search(rf"(rate|increase)\({name}", expr)
        else:
            assert re.search(rf"(rate|increase)\({name}", expr)


def test_the_list_has_every_metric_that_a_gateway_returns() -> None:
    heads = re.findall(r"# TYPE (\S+) (\S+)", render({**Metrics().snapshot((), None), "scaling": {"m": {}}}).decode())
    assert dict(heads) == {metric.name: metric.kind for metric in METRICS}


def test_the_reference_page_names_every_metric() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    for metric in METRICS:
        assert f"`{re.sub('longboat_(gateway|scaling|planner|node)_', '', metric.name)}`" in page, metric.name


def test_every_metric_of_requests_is_on_a_dashboard() -> None:
    shown = {
        STORED[name].name for b in BOARDS for p in b.panels for expr, _ in p.queries for name in NAME.findall(expr)
    }
    assert {metric.name for metric in METRICS} - shown == set()


def test_dashboards_are_whole() -> None:
    for board in BOARDS:
        document = dashboard(board)
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in document["panels"]]
        assert len(set(places)) == len(places)
        asked = {
            name for panel in board.panels for expr, _ in panel.queries for name in re.findall(r"\$([a-z]+)", expr)
        }
        assert asked == {name for name, _ in board.variables}
        legends = [(expr, re.findall(r"\{\{(\w+)\}\}", legend)) for p in board.panels for expr, legend in p.queries]
        for expr, labels in legends:
            assert set(labels) <= {label.strip() for group in BY.findall(expr) for label in group.split(",")}, expr


def test_every_alert_has_a_runbook() -> None:
    files = all_files(("10.0.0.5:8000",))
    for rule in yaml.safe_load(files["longboat-alerts.yaml"])["groups"][0]["rules"]:
        anchor = rule["annotations"]["runbook"].removeprefix("runbooks.md#")
        assert f"## {anchor}" in files["runbooks.md"].lower()


def test_containers_read_the_files_that_are_written() -> None:
    files = all_files(("10.0.0.5:8000",), key_file="/etc/key")
    services = yaml.safe_load(files["compose.yaml"])["services"]
    places: dict[str, str] = {}
    for volume in (volume for service in services.values() for volume in service["volumes"]):
        source, place = volume.split(":")[:2]
        places[place] = source
        if source.startswith("./"):
            assert any(name.startswith(source[2:]) for name in files), source
    (settings,) = [word for word in services["prometheus"]["command"] if word.startswith("--config.file=")]
    assert places[settings.partition("=")[2]] == "./prometheus.yaml" and places["/etc/key"] == "/etc/key"
    (provider,) = yaml.safe_load(files["grafana-boards.yaml"])["providers"]
    assert places[provider["options"]["path"]] == "./grafana"
    (source,) = yaml.safe_load(files["grafana-source.yaml"])["datasources"]
    assert f"--web.listen-address={source['url'].removeprefix('http://')}" in services["prometheus"]["command"]


def test_the_command_writes_files_and_keeps_what_was_changed(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["dashboards", str(tmp_path / "d"), *words])
        return done.exit_code, done.output if not done.exception else str(done.exception)

    code, output = run("--gateway", "10.0.0.5:8000", "--key-file", "/etc/key", "--json")
    assert code == 0
    assert len(json.loads(output)["files"]) == len(BOARDS) + 6
    settings = yaml.safe_load((tmp_path / "d/prometheus.yaml").read_text())
    assert settings["scrape_configs"][0]["static_configs"] == [{"targets": ["10.0.0.5:8000"]}]
    assert settings["scrape_configs"][0]["authorization"]["credentials_file"] == "/etc/key"
    (tmp_path / "d/runbooks.md").write_text("mine")
    code, said = run("--gateway", "10.0.0.5:8000", "--key-file", "/etc/key")
    assert (code, "runbooks.md was changed" in said) == (1, True)
    assert (tmp_path / "d/runbooks.md").read_text() == "mine"
    assert run("--gateway", "10.0.0.5:8000", "--force")[0] == 0
    assert "not HOST:PORT" in run("--gateway", "10.0.0.5")[1]
    assert "not HOST:PORT" in run("--gateway", "https://10.0.0.5/a:8000")[1]
    assert "'key' is a relative path" in run("--key-file", "key")[1]
    assert run("--gateway", "10.0.0.5:8000", "--gateway", "https://node1:8000", "--force")[0] == 0
    (job,) = yaml.safe_load((tmp_path / "d/prometheus.yaml").read_text())["scrape_configs"]
    secure = {"targets": ["node1:8000"], "labels": {"__scheme__": "https"}}
    assert job["static_configs"] == [{"targets": ["10.0.0.5:8000"]}, secure]
    assert run("--gateway", "10.0.0.5:8000", "--key-file", "/etc/key", "--discover", "--force")[0] == 0
    gateways, engines = yaml.safe_load((tmp_path / "d/prometheus.yaml").read_text())["scrape_configs"]
    assert gateways["http_sd_configs"][0]["url"].startswith("http://10.0.0.5:8000/admin/v1/prometheus-targets")
    assert "authorization" in gateways and "authorization" not in engines


def test_every_alert_is_planted_by_the_check_with_prometheus() -> None:
    assert set(check_alerts.PLANTED) == {alert.name for alert in ALERTS}
