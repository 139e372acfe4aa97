"""``longboat why`` without an id: what runs and the newest requests that ended, and which replica or tenant is slow."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longboat.cli.shared.console import make_console, simple_table
from longboat.cli.shared.gateway_replies import asked_gateways
from longboat.gateway.admin.node_query import RecentQuery

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("medians", "run_why_slow")

SHOWN = 10
"""Requests that have a row of their own."""
TIMES = (("QUEUE ms", "queue_ms"), ("TTFT ms", "ttft_ms"), ("ms/TOKEN", "ms_per_token"))
Row = Mapping[str, Any]


def run_why_slow(*, tenant: str | None, num_requests: int, url: str | None, as_json: bool) -> None:
    """Print the newest requests that ended, and what each replica and tenant has running.

    Medians are over ``num_requests`` of those that ended.
    """
    query = RecentQuery(tenant, num_requests)
    with asked_gateways(url) as gateways:
        found = query.joined(gateways.ask(query))
    rows, running = [_timed(row) for row in found["requests"]], found["running"]
    groups = {
        name: medians(rows, group_of, running) for name, group_of in (("replicas", _replica), ("tenants", _tenant))
    }
    if as_json:
        print(json.dumps({"requests": rows, **groups}, indent=2))
        return
    if not rows and not running:
        print(f"no gateway remembers a request{f' of tenant {tenant}' if tenant else ''}")
        return
    console = make_console()
    console.print(_grouped("REPLICA", groups["replicas"]), highlight=False)
    console.print()
    console.print(_grouped("TENANT", groups["tenants"]), highlight=False)
    if not rows:
        return
    console.print()
    console.print(_newest(rows[:SHOWN]), highlight=False)
    console.print("longboat why ID shows one of them in full", style="dim", highlight=False)


def medians(rows: Iterable[Row], group_of: Callable[[Row], str], running: Sequence[Row] = ()) -> list[dict[str, Any]]:
    """Return one entry for each group, the slowest token first: requests, failures, and the median of each time.

    running: numbers of requests that have not ended, as ``RecentQuery`` has them
    A median is None where no request of the group has the time.
    """
    groups: dict[str, list[Row]] = {group_of(row): [] for row in running}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    now: Counter[str] = Counter()
    for row in running:
        now[group_of(row)] += row["requests"]
    found = [{"name": name, "running": now[name], **_of_group(members)} for name, members in groups.items()]
    return sorted(found, key=lambda entry: (-(entry["ms_per_token"] or 0.0), -entry["running"], str(entry["name"])))


def _of_group(rows: Sequence[Row]) -> dict[str, Any]:
    counts = {"requests": len(rows), "failed": sum(row["outcome"] != "ok" for row in rows)}
    return counts | {name: _median(row[name] for row in rows) for _, name in TIMES}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _timed(row: Row) -> dict[str, Any]:
    """Return the row with the time for a token on its replica, the first token included."""
    total, tokens = row["total_ms"], row["completion_tokens"]
    per_token = (total - (row["queue_ms"] or 0.0)) / tokens if total is not None and tokens else None
    return {**row, "ms_per_token": per_token}


def _replica(row: Row) -> str:
    return f"{row.get('pool') or row['model']}/{row['replica'] or 'none'}"


def _tenant(row: Row) -> str:
    return str(row["tenant"])


def _grouped(title: str, groups: Iterable[Row]) -> Table:
    table = simple_table(title, "RUNNING>", "ENDED>", "FAILED>", *(f"{words}>" for words, _ in TIMES))
    for group in groups:
        counts = (f"{group[name]:,}" for name in ("running", "requests", "failed"))
        table.add_row(group["name"], *counts, *(_number(group[name]) for _, name in TIMES))
    return table


def _newest(rows: Iterable[Row]) -> Table:
    table = simple_table("NEWEST", "TENANT", "REPLICA", *(f"{words}>" for words, _ in TIMES), "OUTCOME>")
    for row in rows:
        times = (_number(row[name]) for _, name in TIMES)
        table.add_row(row["id"], row["tenant"], row["replica"] or "none", *times, row["outcome"])
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"
