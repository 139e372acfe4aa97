"""``longboat usage``: requests and tokens by tenant, model and day, added up over all gateways."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from longboat.cli.shared.cluster_at_hand import connect
from longboat.cli.shared.gateway_replies import ask_gateways
from longboat.cluster.protocol.messages import FleetReport
from longboat.cluster.ray.session import Session
from longboat.core.errors import ClusterError
from longboat.core.external import NANOS
from longboat.gateway.admin.node_query import UsageQuery

__all__ = ("added_up", "run_usage")

COUNTS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")
OUTSIDE = ("sent", "cost_nanos")
"""Counts of external models only: requests that their addresses got, and what these cost in billionths."""
KEYS = ("day", "tenant", "model")


def run_usage(*, num_days: int, as_json: bool) -> None:
    """Print the last ``num_days`` days of UTC, today included.

    Raises ClusterError when there is no fleet, or no gateway answers; nodes that do not answer are named on stderr.
    """
    first = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=num_days - 1)
    with connect() as session:
        report = _report(session)
        replies, silent = ask_gateways(session, report.gateways, UsageQuery(num_days))
    found = [entry for reply in replies for entry in reply["days"]]
    rows = added_up(found, first.isoformat())
    if any("cost_nanos" in row for row in rows):
        rows = priced(rows, _currencies(report))
    if as_json:
        print(json.dumps({"days": rows, "missing_nodes": silent}, indent=2))
    elif rows:
        _print_table(rows)
    else:
        print(f"no requests since {first.isoformat()} (UTC)")
    for node, why in silent.items():
        print(f"warning: without node {node}: {why}", file=sys.stderr, flush=True)


def added_up(entries: Iterable[Mapping[str, Any]], first_day: str) -> list[dict[str, Any]]:
    """One entry for each day, tenant and model, from ``first_day`` (ISO date) on, the newest day first."""
    sums: dict[tuple[str, ...], dict[str, int]] = {}
    for entry in entries:
        if str(entry["day"]) >= first_day:
            counts = sums.setdefault(tuple(str(entry[key]) for key in KEYS), dict.fromkeys(COUNTS, 0))
            for name in (*COUNTS, *OUTSIDE):
                if value := int(entry.get(name) or 0):
                    counts[name] = counts.get(name, 0) + value
    by_name = sorted(sums.items(), key=lambda item: item[0][1:])
    newest_first = sorted(by_name, key=lambda item: item[0][0], reverse=True)
    return [{**dict(zip(KEYS, key, strict=True)), **counts} for key, counts in newest_first]


def priced(rows: list[dict[str, Any]], currencies: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows with ``cost`` and ``currency`` where a model cost money. currencies: of the models now"""
    return [
        {**row, "cost": row["cost_nanos"] / NANOS, "currency": currencies.get(row["model"], "")}
        if row.get("cost_nanos")
        else row
        for row in rows
    ]


def _report(session: Session) -> FleetReport:
    report = session.report()
    if report is None:
        raise ClusterError("no fleet is up on this cluster", hint="longboat up FILE starts one")
    return report


def _currencies(report: FleetReport) -> dict[str, str]:
    from longboat.spec.files.load import load_fleet

    models = load_fleet(report.document, "the running fleet").external if report.document else ()
    return {model.name: model.engine.price.currency for model in models if model.engine.price is not None}


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from longboat.cli.shared.console import make_console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("DAY (UTC)", "TENANT", "MODEL"):
        table.add_column(column, no_wrap=True)
    for column in ("REQUESTS", "PROMPT", "COMPLETION", "CACHED"):
        table.add_column(column, no_wrap=True, justify="right")
    has_cost = any("cost" in row for row in rows)
    if has_cost:
        table.add_column("COST", no_wrap=True, justify="right")
    for row in rows:
        cost = (f"{row['cost']:,.4f} {row['currency']}".rstrip() if "cost" in row else "",) if has_cost else ()
        table.add_row(*(str(row[key]) for key in KEYS), *(f"{row[name]:,}" for name in COUNTS), *cost)
    make_console().print(table, markup=False, highlight=False)
