"""`longboat usage`: sums over nodes."""

from __future__ import annotations

import csv
import datetime
import http.server
import io
import json
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import pytest

from cli.cli_builders import gateway, report
from cli.cli_process import Done
from cli.fake_cluster import FakeSession
from longboat.cli.look import usage
from longboat.cli.look.usage import added_up
from longboat.cli.look.usage_chart import usage_chart
from longboat.cli.look.usage_forms import CSV_COLUMNS, usage_csv, usage_plot
from longboat.cluster.protocol.messages import FleetReport
from longboat.core.errors import ClusterError
from longboat.gateway.admin.node_query import UsageQuery, decode_query

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


def test_money_keeps_the_currency_in_which_it_was_counted() -> None:
    entries = [
        {**entry(), "currency": "USD"},
        {**entry(requests=2, cost_nanos=5_000_000), "currency": "USD"},
        {**entry(requests=3, cost_nanos=1_000_000), "currency": "EUR"},
        entry("2026-01-02", requests=4, cost_nanos=2_000_000),
    ]
    rows = added_up(entries, "2000-01-01", {"m": "EUR"})
    found = [(row["day"], row["requests"], row["cost"], row["currency"]) for row in rows]
    assert found == [(TODAY, 4, 0.001, "EUR"), (TODAY, 2, 0.005, "USD"), ("2026-01-02", 4, 0.002, "EUR")]


def test_query_is_what_gateways_read() -> None:
    assert decode_query(usage.usage_query(31)) == UsageQuery(31)


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
    monkeypatch.setattr(usage, "connect_quickly", lambda: Fleet(*silent))
    done = longboat("usage", "--json")
    document = json.loads(done.stdout)
    assert document["days"][0]["requests"] == requests
    assert list(document["missing_nodes"]) == list(silent)
    assert ("do not include node n2" in done.stderr) == bool(silent)
    assert "COMPLETION" in longboat("usage").stdout


class LongBooks(FakeSession):
    """Two nodes with gateways that counted a request each day; one of them gives two days at a time."""

    def report(self) -> FleetReport:
        return report(gateways=(gateway("n1"), gateway("n2")))

    def ask_daemon(self, node_id: str, method: str, *args: object) -> Any:
        query = decode_query(args[0])  # type: ignore[arg-type]
        assert isinstance(query, UsageQuery)
        today = datetime.datetime.now(datetime.UTC).date()  # not that of the import: tests run over midnight, too
        days = [(today - datetime.timedelta(days=ago)).isoformat() for ago in range(query.days)]
        days = [day for day in days if day <= (query.until or today.isoformat())]
        num_given = 2 if node_id == "n1" else len(days)
        older = next(iter(days[num_given:]), None)
        return {"days": [entry(day) for day in days[:num_given]], "older": older, "limits": []}


def test_days_that_a_gateway_left_out_are_asked_of_all_gateways(
    longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "connect_quickly", lambda: LongBooks({}))
    document = json.loads(longboat("usage", "--json", "--days", "5").stdout)
    assert [row["requests"] for row in document["days"]] == [2] * 5


def test_a_fleet_that_tells_nothing_is_an_error(longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "connect_quickly", lambda: Fleet("n1", "n2"))
    assert longboat("usage").returncode == 3


class OneGateway(http.server.BaseHTTPRequestHandler):
    """A gateway without a fleet, which counted two requests; a tenant has half of its tokens left."""

    def do_GET(self) -> None:
        limit = {"kind": "tokens_per_day", "tenant": "a", "used": 15, "left": 15, "limit": 30}
        is_right = self.path == "/admin/v1/usage?days=7" and self.headers["Authorization"] == "Bearer lbk-1"
        days = [entry(requests=2, cost_nanos=5_000_000)]
        units = {days[0]["model"]: "EUR"}
        body = json.dumps({"days": days, "currencies": units, "limits": [limit], "missing": []})
        self.send_response(200 if is_right else 400)
        self.end_headers()
        self.wfile.write(body.encode())


def test_one_gateway_without_a_fleet_is_asked_by_its_address(
    longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGBOAT_API_KEY", "lbk-1")
    with http.server.HTTPServer(("127.0.0.1", 0), OneGateway) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        done = longboat("usage", "--json", "--url", f"http://127.0.0.1:{server.server_port}/v1")
        server.shutdown()
    document = json.loads(done.stdout)
    day = document["days"][0]
    assert (day["requests"], day["cost"], day["currency"]) == (2, 0.005, "EUR")
    assert [limit["left"] for limit in document["limits"]] == [15]


def test_csv_has_a_head_and_the_money_of_models_that_cost_some() -> None:
    paid = {**entry("2026-01-02", model='a,"b"'), "cost": 0.0125, "currency": "EUR", "cost_nanos": 12_500_000}
    rows = list(csv.DictReader(io.StringIO(usage_csv([paid, entry("2026-01-01")]))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert (rows[0]["model"], rows[0]["cost"], rows[0]["currency"]) == ('a,"b"', "0.012500000", "EUR")
    assert (rows[1]["day"], rows[1]["prompt_tokens"], rows[1]["cost"]) == ("2026-01-01", "10", "")


def test_plot_has_a_bar_for_each_day_and_adds_money_by_currency() -> None:
    rows = [
        {**entry("2026-01-02", prompt_tokens=75), "cost": 1.5, "currency": "EUR"},
        {**entry("2026-01-02", tenant="b"), "cost": 1.0, "currency": "EUR"},
        {**entry("2026-01-01"), "cost": 2.0, "currency": "USD"},
        entry("2025-12-31"),
    ]
    head, first, second, third = usage_plot(rows, ["2026-01-01", "2026-01-02", "2026-01-03"]).splitlines()
    assert head.endswith("95")
    assert (first.split()[0], first.split()[2:]) == ("2026-01-01", ["15", "2.0000", "USD"])
    assert (second.count("█"), second.split()[2:]) == (40, ["95", "2.5000", "EUR"])
    assert third.split() == ["2026-01-03", "0"]


def test_chart_is_xml_with_a_bar_of_each_tenant_and_day() -> None:
    rows = [
        entry("2026-01-02", tenant="<b>", prompt_tokens=75),
        entry("2026-01-02", tenant="a", prompt_tokens=25, model="n"),
        entry("2026-01-01", tenant="a"),
        entry("2025-12-31", tenant="old"),
    ]
    bars = {bar[0].text: float(bar.attrib["height"]) for bar in drawn(rows) if len(bar)}
    assert set(bars) == {
        "2026-01-01, a: 15 tokens",
        "2026-01-02, a: 30 tokens",
        "2026-01-02, <b>: 80 tokens",
    }
    whole = bars["2026-01-02, a: 30 tokens"] + bars["2026-01-02, <b>: 80 tokens"]
    assert bars["2026-01-01, a: 15 tokens"] == pytest.approx(whole * 15 / 110, abs=0.2)


def test_chart_joins_the_smallest_of_many_tenants() -> None:
    bars = [
        bar[0].text for bar in drawn([entry("2026-01-01", tenant=f"t{n}", requests=1) for n in range(30)]) if len(bar)
    ]
    assert len(bars) == 8 and "2026-01-01, all others: 345 tokens" in bars


def test_chart_without_usage_has_no_bar() -> None:
    assert [bar for bar in drawn([]) if len(bar)] == []


def drawn(rows: list[dict[str, Any]]) -> list[ElementTree.Element]:
    """Return the rectangles of the chart of two days; bars have a title inside."""
    root = ElementTree.fromstring(usage_chart(rows, ["2026-01-01", "2026-01-02"]))  # noqa: S314 - made here
    return root.findall("{http://www.w3.org/2000/svg}rect")


@pytest.mark.parametrize(
    ("words", "shown"),
    [(("--csv",), "day,tenant,model"), (("--plot",), "█" * 40), (("--svg",), "</svg>")],
    ids=["csv", "plot", "svg"],
)
def test_the_command_prints_other_forms(
    longboat: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], shown: str
) -> None:
    monkeypatch.setattr(usage, "connect_quickly", Fleet)
    done = longboat("usage", *words)
    assert (done.returncode, shown in done.stdout) == (0, True)


def test_two_forms_together_are_refused(longboat: Callable[..., Done]) -> None:
    done = longboat("usage", "--csv", "--json")
    assert done.returncode == 2
    assert "--csv and --json together" in done.stderr + done.stdout
