"""What ``longboat status --json`` prints."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest

from cli.cli_builders import gateway, report
from cli.cli_process import Done
from cli.fake_cluster import FakeSession
from longboat.cli.look import status
from longboat.cluster.fleet.running_file import RunningFile
from longboat.cluster.protocol.messages import FleetReport
from longboat.cluster.protocol.shown import shown_fleet
from longboat.core.errors import ClusterError
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet

TEXT = "models: [{source: builtin:tiny, engine: {kind: fake, env: {A_TOKEN: hf_secret}}}]"


def test_variables_of_engines_are_not_shown() -> None:
    text = dump_fleet(load_fleet(TEXT, "x"))
    assert "hf_secret" in text
    planned = {"asked": text, "models": {}, "forced": ["too large"]}
    seen = dataclasses.replace(report(document=text), planned=planned)
    document = status._document((), seen)
    assert "hf_secret" not in json.dumps(document)
    assert document["planned"] == {"models": {}, "forced": ["too large"]}


def test_what_the_controller_read_of_the_file_is_shown_as_if_it_was_read_here() -> None:
    fleet = load_fleet(GUARDED, "x")
    seen = report(document=dump_fleet(fleet), gateways=(gateway("n1"), gateway("n2")))
    told = status._document((), dataclasses.replace(seen, document="", shown=shown_fleet(fleet)))
    assert told == status._document((), seen)
    assert told["wanted"] == {"tiny": 3}
    assert told["access"]["tenants"][0]["requests_per_minute"] == 60


async def test_the_controller_shows_nothing_of_a_file_that_it_cannot_read() -> None:
    running = RunningFile()
    assert await running.shown("models: 7") is None
    assert (await running.shown(dump_fleet(load_fleet(GUARDED, "x")))) == shown_fleet(load_fleet(GUARDED, "x"))


GUARDED = """
models: [{source: "builtin:tiny", engine: fake, replicas: 3}]
gateway: {auth: keys, tenants: [{name: a, requests_per_minute: 60}]}
"""
EXTERNAL = """
models:
  - {source: "builtin:tiny", engine: fake}
  - {name: cloud, engine: {kind: external, urls: ["https://llm.example/v1"], limits: {requests_per_day: 10}}}
"""
TODAY = datetime.datetime.now(datetime.UTC).date().isoformat()


class Fleet(FakeSession):
    """Two nodes, whose gateways sent three requests each to the external model; those in ``silent`` do not answer."""

    def __init__(self, *silent: str) -> None:
        super().__init__({})
        self.silent = silent

    def report(self) -> FleetReport:
        text = dump_fleet(load_fleet(EXTERNAL, "x"))
        return report(document=text, gateways=(gateway("n1"), gateway("n2")))

    def ask_daemon(self, node_id: str, method: str, *args: object) -> Any:
        assert (method, args) == ("ask_gateway", (b'{"query":"usage","days":1}',))
        if node_id in self.silent:
            raise ClusterError("no answer")
        row = {"day": TODAY, "tenant": "a", "model": "cloud", "sent": 3, "prompt_tokens": 1, "completion_tokens": 1}
        limits = [
            {"tenant": "a", "kind": "tokens_per_day", "limit": 5},
            {"model": "cloud", "kind": "requests_per_day", "limit": 10},
        ]
        return {"days": [row], "limits": limits}


@pytest.mark.parametrize(
    ("silent", "used"),
    [
        pytest.param((), 6, id="all nodes answer"),
        pytest.param(("n2",), 3, id="one is silent"),
        pytest.param(("n1", "n2"), None, id="all are silent"),
    ],
)
def test_what_is_left_of_an_external_model_s_limits_is_shown(
    longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, silent: tuple[str, ...], used: int | None
) -> None:
    monkeypatch.setattr(status, "session_on_node", lambda _: Fleet(*silent))
    document = json.loads(longboat("status", "--json").stdout)
    left = {"model": "cloud", "kind": "requests_per_day", "limit": 10, "used": used, "left": 10 - (used or 0)}
    assert document["limits"] == ([left] if used else [])
    assert len(document["missing_nodes"]) == min(1, len(silent))
    shown = longboat("status").stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith("requests_per_day")]
    assert rows == ([["requests_per_day", "external", "cloud", str(used), str(10 - used), "10"]] if used else [])
    assert ("no answer" in shown) == bool(silent)
