"""What `up --json` says: the numbers that were found, and what runs where; or the error, in the same place."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli.cli_builders import gateway, replica, report
from cli.cli_process import Done
from longboat.cli.fleet import up
from longboat.cli.fleet.fleet_plan import show_plan
from longboat.cli.fleet.up_document import up_values
from longboat.cluster.preflight.checks import EngineFinding, NodeFindings, PreflightRequest
from longboat.cluster.preflight.surroundings import CheckedPlan, UpOptions, checked_plan
from longboat.cluster.protocol.messages import FleetReport
from longboat.core.errors import ClusterError
from longboat.core.states import RankState
from longboat.core.topology import Node
from longboat.spec.files.load import load_fleet

Longboat = Callable[..., Done]
AUTO = "models: [{source: 'builtin:tiny', split: auto, replicas: auto}]"


def planned(text: str, *, force: bool = False) -> CheckedPlan:
    """A fleet on one node of two CPUs and 24 GiB."""

    def inspect(node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        engines = dict.fromkeys(request.engines, EngineFinding(platform="cpu"))
        return {name: NodeFindings(hostname="one", engines=engines, memory_bytes=24 << 30) for name in node_ids}

    node = Node(node_id="n", address="10.0.0.1", num_cpus=2, memory_bytes=16 << 30)
    return checked_plan(load_fleet(text, "x"), [node], inspect, options=UpOptions(force=force))


def told(text: str, seen: FleetReport | None = None, *, force: bool = False) -> dict[str, Any]:
    """The fleet's document as a reader of JSON gets it."""
    plan = planned(text, force=force)
    values = up_values(load_fleet(text, "x"), plan, seen, action="started", started_cluster=True)
    document: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    return document


def test_what_was_decided_has_its_numbers_and_reasons() -> None:
    model = told(AUTO)["models"]["tiny"]
    assert model["auto"] == ["split", "replicas"]
    assert model["replicas"] == 2
    assert (model["split"]["tensor"], model["split"]["pipeline"], model["nodes"]) == (1, 1, 1)
    decided, placed = model["reasons"]
    assert decided.startswith("best of ")
    assert placed.startswith("one rank on one node")


def test_a_part_of_the_split_that_was_decided_is_named() -> None:
    model = told("models: [{source: 'builtin:tiny', split: {tensor: auto, pipeline: 2}}]")["models"]["tiny"]
    assert model["auto"] == ["split.tensor"]
    assert (model["split"]["tensor"], model["split"]["pipeline"]) == (1, 2)


@pytest.mark.parametrize(
    ("split", "shown"),
    [
        ("auto", "none (auto)"),
        ("{tensor: auto, pipeline: 2}", "pipeline 2 (tensor auto)"),
        ("{tensor: 2, pipeline: auto}", "tensor 2 (pipeline auto)"),
        ("{pipeline: 2}", "pipeline 2  "),
    ],
)
def test_the_table_says_which_part_of_the_split_was_decided(split: str, shown: str) -> None:
    text = f"models: [{{source: 'builtin:tiny', split: {split}, load: {{users: 1}}}}]"
    out = io.StringIO()
    show_plan(load_fleet(text, "x"), planned(text), Console(file=out, width=250))
    assert shown in out.getvalue()


def test_what_is_expected_is_readable_in_a_terminal_of_100_columns() -> None:
    out = io.StringIO()
    show_plan(load_fleet(AUTO, "x"), planned(AUTO), Console(file=out, width=100))
    expected = [" ".join(line.split()) for line in out.getvalue().partition("EXPECTED")[2].splitlines()]
    assert re.fullmatch(
        r"tiny 8 x \d+\+\d+ \d+ \(\d+ … \d+\) [\d.]+ \([\d.]+ … [\d.]+\) \d+ [\d.]+ \d+", expected[1]
    ), expected
    assert expected[2].startswith("tiny: each rank on 1 CPU of ")
    assert expected[2].endswith("; times are computed")


def test_an_encoder_of_the_usual_512_tokens_fits_and_has_no_cache() -> None:
    text = "models: [{source: 'builtin:tiny-embed', task: embed}]"
    out = io.StringIO()
    show_plan(load_fleet(text, "x"), planned(text), Console(file=out, width=100))
    _, row, *_ = out.getvalue().partition("EXPECTED")[2].splitlines()
    assert row.split()[1:4] == ["8", "x", "511+1"]
    assert row.split()[-1] == "-"
    assert "fit" not in out.getvalue()


def test_what_the_file_says_is_not_called_decided() -> None:
    model = told("models: [{source: 'builtin:tiny', split: {pipeline: 2}}]")["models"]["tiny"]
    assert model["auto"] == []
    assert model["split"]["pipeline"] == 2
    assert len(model["split"]["layers"]) == 2


def test_expectations_are_intervals_with_their_origin() -> None:
    expected = told(AUTO)["models"]["tiny"]["expected"]
    for name in ("ttft_s", "itl_s", "tokens_per_s"):
        figure = expected[name]
        assert 0 < figure["low"] <= figure["value"] <= figure["high"]
        assert figure["provenance"]
    assert expected["users_per_replica"] * 2 == expected["users"] == 8
    assert expected["tokens_per_s"]["value"] < expected["users"] / expected["itl_s"]["value"]
    assert expected["tokens_per_s"]["value"] > expected["users_per_replica"] / expected["itl_s"]["value"] / 2
    assert expected["fits"]
    assert expected["shortage"] == ""


def test_what_is_started_against_the_plan_is_told_with_what_is_short() -> None:
    document = told("models: [{source: 'builtin:random-1b', context: 8192}]", force=True)
    (forced,) = document["forced"]
    assert "one request of 8192 tokens takes" in forced
    expected = document["models"]["random-1b"]["expected"]
    assert not expected["fits"]
    assert expected["itl_s"] is None
    assert "8192 tokens" in expected["shortage"]


def test_doubts_are_warnings_of_their_model() -> None:
    text = "models: [{source: 'builtin:tiny'}, {source: 'hf:a/b'}]"
    models = told(text)["models"]
    assert models["tiny"]["warnings"] == []
    assert models["b"]["expected"] is None
    assert models["b"]["warnings"] == ["not planned: a/b is not in the catalog"]


def test_addresses_are_those_that_work_and_replicas_are_on_their_nodes() -> None:
    rank = RankState(node_rank=0, node_id="n1", address="10.0.0.1", hostname="one")
    seen = report(
        replica("tiny", "r1", url="http://10.0.0.1:9", ranks=(rank,)),
        replica("other", "r2"),
        gateways=(gateway("n1"), gateway("n2", problem="port taken", url="")),
    )
    document = told(AUTO, seen)
    assert document["addresses"] == ["http://10.0.0.1:8000/v1"]
    assert [one["problem"] for one in document["gateways"]] == ["", "port taken"]
    (running,) = document["models"]["tiny"]["running"]
    assert (running["replica"], running["phase"], running["url"]) == ("r1", "ready", "http://10.0.0.1:9")
    assert running["nodes"] == [{"node_id": "n1", "hostname": "one", "address": "10.0.0.1"}]


def test_a_model_without_replicas_is_told_too() -> None:
    model = told("models: [{source: 'builtin:tiny', replicas: 0}]")["models"]["tiny"]
    assert model["replicas"] == 0
    assert model["expected"] is None
    assert model["running"] == []


def test_errors_are_the_document_and_stay_on_stderr(longboat: Longboat, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("models: [{source: 'builtin:tiny', replica: 2}]\ngateway: {port: 99999}\n")
    done = longboat("up", str(file), "--json")
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == done.returncode == 2
    assert [(one["where"], one["hint"]) for one in error["problems"]] == [
        ("models[0].replica", "write replicas"),
        ("gateway.port", "write 65535"),
    ]
    plain = longboat("up", str(file))
    assert plain.stdout == ""
    assert plain.stderr == done.stderr


def test_an_error_of_the_cluster_has_no_problems_of_the_file(
    longboat: Longboat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    done = longboat("up", "builtin:tiny", "--json")
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == done.returncode == 3
    assert error["message"].startswith("no cluster answers at 127.0.0.1:1")
    assert error["hint"]
    assert error["problems"] == []


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), ClusterError("the cluster is gone")])
def test_an_error_after_the_document_prints_no_second_one(
    error: Exception, longboat: Longboat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(up, "up_in_foreground", lambda *_, **__: nullcontext(("session", "applied")))
    monkeypatch.setattr(up, "_document", lambda *_: {"fleet": "t"})
    monkeypatch.setattr(up, "hold", fail)
    done = longboat("up", "builtin:tiny", "--json")
    assert json.loads(done.stdout) == {"fleet": "t"}
    assert str(error) in done.stderr
    assert done.returncode
