"""`longboat usage`: sums over nodes."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest

from cli.cli_builders import gateway, report
from cli.cli_process import Done
from cli.fake_cluster import FakeSession
from longboat.cli.look import usage
from longboat.cli.look.usage import added_up
from longboat.cluster.protocol.messages import FleetReport
from longboat.core.errors import ClusterError

TODAY = datetime.datetime.now(datetime.UTC).date().isoformat()


def entry(day: str = TODAY, tenant: str = "a", model: str = "m", requests: int = 1, **counts: int) -> dict[str, Any]:
    tokens = {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 0}
    return {"day": day, "tenant": tenant, "model": model, "requests": requests, **tokens, **counts}


def test_entries_of_one_day_tenant_and_model_are_added_up() -> None:
    rows = added_up([entry(), entry(requests=2, cached_tokens=4), entry(model="n")], "2000-01-01")
    assert rows == [
        {**entry(requests=3), "prompt_tokens": 20, "completion_tokens": 10, "cached_tokens": 4},
        entry(model="n"),
    ]


def test_days_are_shown_the_newest_first_and_old_ones_not() -> None:
    rows = added_up([entry("2026-01-02"), entry("2026-01-01"), entry("2026-01-03"), entry("2025-12-31")], "2026-01-01")
    assert [row["day"] for row in rows] == ["2026-01-03", "2026-01-02", "2026-01-01"]


class Fleet(FakeSession):
    """Two nodes with gateways; those in ``silent`` do not answer."""

    def __init__(self, *silent: str) -> None:
        super().__init__({})
        self.silent = silent

    def report(self) -> FleetReport:
        return report(gateways=(gateway("n1"), gateway("n2")))

    def ask_daemon(self, node_id: str, method: str, *args: object) -> Any:
        assert (method, args) == ("ask_gateway", (b'{"query":"usage","days":7}',))
        if node_id in self.silent:
            raise ClusterError("no answer")
        return {"days": [entry()], "missing": []}


@pytest.mark.parametrize(("silent", "requests"), [((), 2), (("n2",), 1)])
def test_what_silent_nodes_know_is_missing_and_said_so(
    longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, silent: tuple[str, ...], requests: int
) -> None:
    monkeypatch.setattr(usage, "connect", lambda: Fleet(*silent))
    done = longboat("usage", "--json")
    document = json.loads(done.stdout)
    assert document["days"][0]["requests"] == requests
    assert list(document["missing_nodes"]) == list(silent)
    assert ("without node n2" in done.stderr) == bool(silent)
    assert "COMPLETION" in longboat("usage").stdout


def test_a_fleet_that_tells_nothing_is_an_error(longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "connect", lambda: Fleet("n1", "n2"))
    assert longboat("usage").returncode == 3
