"""``longboat routes``: what the replicas of a model have to do, and how much of it they find in their caches."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from longboat.cli.shared.console import make_console, simple_table
from longboat.cli.shared.gateway_replies import Asked, asked_gateways
from longboat.core.errors import ClusterError, UserInputError
from longboat.gateway.admin.routing_queries import RoutesQuery

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("run_routes",)

_EVERY_S = 1.0
_COLUMNS = (
    *("REPLICA", "STATE", "IN\nFLIGHT>", "PREFILL\nTOKENS>", "DECODE\nTOKENS>", "RUN>", "WAIT>", "KV>"),
    *("REQUESTS>", "CACHED>", "EXPECTED>"),
)

_NO_HITS = "CACHED and EXPECTED are empty: these engines do not report cached tokens, or the model has one replica only"


def run_routes(model: str | None, *, watch: bool, url: str | None, as_json: bool) -> None:
    """Print one row for each replica, once or every second.

    Raises UserInputError where the fleet has no such model.
    """
    with asked_gateways(url) as gateways:
        if not watch:
            _show(_joined(gateways, model), as_json=as_json)
            return
        if as_json:
            while True:
                print(json.dumps(_joined(gateways, model)), flush=True)
                time.sleep(_EVERY_S)
        _watch(gateways, model)


def _joined(gateways: Asked, model: str | None) -> dict[str, Any]:
    query = RoutesQuery(model or "")
    replies = gateways.ask(query)
    if not replies or not any(reply["models"] for reply in replies):
        what = "the fleet has no model" if model is None else f"the fleet has no model {model!r}"
        raise UserInputError(what, hint="longboat status lists the models")
    joined = query.joined(replies)
    joined["routes"].sort(key=lambda row: (row["model"], row["replica"]))
    return joined


def _show(document: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document, indent=2))
        return
    console = make_console()
    console.print(_view(document))
    if any(row.get("sent") for row in document["routes"]) and not any(
        row["hits"]["requests"] for row in document["routes"]
    ):
        console.print(_NO_HITS, style="dim", highlight=False)


def _watch(gateways: Asked, model: str | None) -> None:
    from rich.live import Live

    with Live(_view(_joined(gateways, model)), console=make_console(), auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            try:
                live.update(_view(_joined(gateways, model)), refresh=True)
            except ClusterError as error:
                live.update(f"{error.message}; asking again", refresh=True)


def _view(document: Mapping[str, Any]) -> Table:
    table = simple_table(*_COLUMNS, wraps=())
    table.title, table.title_justify = f"policy {document['policy']}", "left"
    for row in document["routes"]:
        table.add_row(*_cells(row))
    return table


def _cells(row: Mapping[str, Any]) -> Iterable[str]:
    hits, engine = row["hits"], row["engine"]
    state = "ready" if row["ready"] else "not ready"
    usage = engine.get("kv_usage")
    return (
        f"{row['model']}/{row['replica']}",
        "suspect" if row["ready"] and row["suspect"] else state,
        f"{row['in_flight']:,}",
        f"{row['prefill_tokens']:,.0f}",
        f"{row['decode_tokens']:,.0f}",
        f"{engine.get('running', '')}",
        f"{engine.get('waiting', '')}",
        "" if usage is None else f"{usage:.0%}",
        f"{row.get('sent', hits['requests']):,}",  # an older gateway does not count it
        _share(hits["cached_tokens"], hits["prompt_tokens"]),
        _share(hits["expected_tokens"], hits["prompt_tokens"]),
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""
