"""``longboat usage``: requests and tokens by tenant, model and day, added up over all gateways."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from longboat.cli.look.daily_limits import limit_table, usage_query
from longboat.cli.look.usage_chart import usage_chart
from longboat.cli.look.usage_forms import usage_csv, usage_plot
from longboat.cli.shared.cluster_at_hand import connect_quickly, report_of
from longboat.cli.shared.node_replies import replies_of
from longboat.core.errors import UserInputError
from longboat.core.external import NANOS
from longboat.routing.capacity.daily_rests import with_rests

if TYPE_CHECKING:
    from longboat.cluster.protocol.messages import FleetReport

__all__ = ("added_up", "form_of", "run_usage")

COUNTS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")
OUTSIDE = ("sent", "cost_nanos")
"""Counts that not every model has: requests that external addresses got, and what all requests cost in billionths."""
KEYS = ("day", "tenant", "model")
_FREE = "-"
"""Stands for the currency of what cost nothing."""
Reply = dict[str, Any]


def form_of(**chosen: bool) -> str:
    """Return the one form that was chosen, or ``table``. Raises UserInputError where there are several."""
    forms = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(forms) > 1:
        raise UserInputError(f"{' and '.join(f'--{name}' for name in forms)} together", hint=f"use --{forms[0]} alone")
    return forms[0] if forms else "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    rows: list[dict[str, Any]]
    limits: list[dict[str, Any]]
    silent: dict[str, str]  # node → why its counts are missing


def run_usage(*, num_days: int, form: str = "table", url: str | None = None) -> None:
    """Print the last ``num_days`` days of UTC, today included. form: ``table``, ``json``, ``csv``, ``plot`` or ``svg``

    Raises ClusterError when there is no fleet, or no gateway answers; nodes that do not answer are named on stderr.
    """
    today = datetime.datetime.now(datetime.UTC).date()
    first = today - datetime.timedelta(days=num_days - 1)
    counts = _of_fleet(num_days, first, today) if url is None else _of_gateway(url, num_days, first)
    rows, limits, silent = counts.rows, counts.limits, counts.silent
    days = [(first + datetime.timedelta(days=at)).isoformat() for at in range(num_days)]
    match form:
        case "json":
            print(json.dumps({"days": rows, "limits": limits, "missing_nodes": silent}, indent=2))
        case "csv":
            print(usage_csv(rows), end="")
        case "plot":
            print(usage_plot(rows, days))
        case "svg":
            print(usage_chart(rows, days), end="")
        case _:
            _print(rows, limits, first.isoformat())
    for node, why in silent.items():
        print(f"warning: the counts do not include node {node}: {why}", file=sys.stderr, flush=True)


def _of_fleet(num_days: int, first: datetime.date, today: datetime.date) -> _Counts:
    silent: dict[str, str] = {}
    with connect_quickly() as session:
        report = report_of(session)

        def ask(until: str) -> list[Reply]:
            replies, others = replies_of(session, report.gateways, usage_query(num_days, until))
            silent.update(others)
            return replies

        entries, limits = _all_pages(ask)
    currencies = _currencies(report) if any(map(_lacks_currency, entries)) else {}
    rows = added_up(entries, first.isoformat(), currencies)
    return _Counts(rows=rows, limits=with_rests(limits[0] if limits else (), rows, today.isoformat()), silent=silent)


def _of_gateway(url: str, num_days: int, first: datetime.date) -> _Counts:
    """Return what one gateway counted."""
    from longboat.cli.shared.gateway_replies import asked_gateways
    from longboat.gateway.admin.node_query import UsageQuery

    currencies: dict[str, str] = {}
    with asked_gateways(url) as gateways:

        def ask(until: str) -> list[Reply]:
            replies = gateways.ask(UsageQuery(num_days, until=until))
            for reply in replies:
                currencies.update(reply.get("currencies", {}))
            return replies

        entries, limits = _all_pages(ask)
    rows = added_up(entries, first.isoformat(), currencies)
    return _Counts(rows=rows, limits=[limit for some in limits for limit in some], silent={})


def _all_pages(ask: Callable[[str], Sequence[Reply]]) -> tuple[list[Reply], list[list[Reply]]]:
    """Return the rows of all gateways, and each one's limits. ask: for the newest days up to one, or for those of now

    A gateway whose reply has too many rows leaves out its oldest days: they are asked of all gateways again.
    """
    replies = ask("")
    limits = [list(reply.get("limits", ())) for reply in replies]
    entries: list[Reply] = []
    until = "~"  # sorts behind every day
    while (older := max((reply.get("older") or "" for reply in replies), default="")) and older < until:
        entries += [entry for reply in replies for entry in reply["days"] if entry["day"] > older]
        until = older
        replies = ask(until)
    return entries + [entry for reply in replies for entry in reply["days"]], limits


def _print(rows: list[dict[str, Any]], limits: list[dict[str, Any]], first_day: str) -> None:
    from longboat.cli.shared.console import make_console

    if rows:
        _print_table(rows)
    else:
        print(f"no requests since {first_day} (UTC)")
    if limits:
        print()
        make_console().print(limit_table(limits), highlight=False)


def added_up(
    entries: Iterable[Mapping[str, Any]], first_day: str, currencies: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return one row for each day, tenant and model, from ``first_day`` (ISO date) on, the newest day first.

    A row that cost money has ``cost`` and ``currency``. Where a price changed its currency during a day, each currency
    has a row. currencies: of the models now, for entries of gateways that did not write one down
    """
    sums: dict[tuple[str, ...], dict[str, dict[str, int]]] = {}
    for entry in entries:
        if str(entry["day"]) >= first_day:
            unit = (
                str(entry.get("currency") or currencies.get(entry["model"], "")) if entry.get("cost_nanos") else _FREE
            )
            by_unit = sums.setdefault(tuple(str(entry[key]) for key in KEYS), {})
            counts = by_unit.setdefault(unit, dict.fromkeys(COUNTS, 0))
            _add(counts, entry)
    by_name = sorted(sums.items(), key=lambda item: item[0][1:])
    newest_first = sorted(by_name, key=lambda item: item[0][0], reverse=True)
    return [row for key, by_unit in newest_first for row in _rows(dict(zip(KEYS, key, strict=True)), by_unit)]


def _add(counts: dict[str, int], more: Mapping[str, Any]) -> None:
    for name in (*COUNTS, *OUTSIDE):
        if value := int(more.get(name) or 0):
            counts[name] = counts.get(name, 0) + value


def _rows(key: Mapping[str, str], by_unit: dict[str, dict[str, int]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each currency; what cost nothing is part of the first."""
    free = by_unit.pop(_FREE, None)
    if not by_unit:
        yield {**key, **(free or {})}
    for unit, counts in sorted(by_unit.items()):
        if free is not None:
            _add(counts, free)
            free = None
        yield {**key, **counts, "cost": counts["cost_nanos"] / NANOS, "currency": unit}


def _lacks_currency(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("cost_nanos")) and not entry.get("currency")


def _currencies(report: FleetReport) -> dict[str, str]:
    from longboat.spec.files.load import load_fleet
    from longboat.spec.policy import prices_of

    if not report.document:
        return {}
    fleet = load_fleet(report.document, "the running fleet")
    own = {name: price.currency for name, price in prices_of(fleet.gateway, fleet.adapters()).items()}
    return own | {model.name: model.engine.price.currency for model in fleet.external if model.engine.price}


def _print_table(rows: list[dict[str, Any]]) -> None:
    from longboat.cli.shared.console import make_console, simple_table

    has_cost = any("cost" in row for row in rows)
    counts = ("REQUESTS>", "PROMPT>", "COMPLETION>", "CACHED>", *(("COST>",) if has_cost else ()))
    table = simple_table("DAY (UTC)", "TENANT", "MODEL", *counts, wraps=())
    for row in rows:
        cost = (f"{row['cost']:,.4f} {row['currency']}".rstrip() if "cost" in row else "",) if has_cost else ()
        table.add_row(*(str(row[key]) for key in KEYS), *(f"{row[name]:,}" for name in COUNTS), *cost)
    make_console().print(table, highlight=False)
