"""``longboat why``: the way of one request, and why it went to its replica."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longboat.cli.shared.console import make_console, simple_table
from longboat.cli.shared.gateway_replies import asked_gateways
from longboat.core.errors import UserInputError
from longboat.gateway.admin.node_query import TimelineQuery

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("run_why",)

_SECONDS = "_s"


def run_why(request_id: str, *, url: str | None, as_json: bool) -> None:
    """Print what happened to a request.

    Raises UserInputError where the gateways do not remember it.
    """
    with asked_gateways(url) as gateways:
        replies = gateways.ask(TimelineQuery(request_id))
    found = [reply["request"] for reply in replies if reply["request"] is not None]
    if not found:
        raise UserInputError(
            f"no gateway remembers a request {request_id!r}",
            hint="take the id from the response's x-request-id; each gateway process keeps only its last requests",
        )
    request = max(found, key=lambda document: float(document["received"]))
    if as_json:
        print(json.dumps(request, indent=2))
        return
    _show(request)


def _show(request: Mapping[str, Any]) -> None:
    from rich.text import Text

    console = make_console()
    routing, choice = request["routing"], request["routing"].get("choice")
    where = f"  {request['path']}  {request['pool']}  {request['outcome']}"
    console.print(Text.assemble((request["id"], "bold"), where))
    console.print(f"model: {routing['chosen']}, because of its {routing['reason']}", highlight=False)
    if choice is None:
        console.print(f"replica: {request['replica'] or 'none'}; there was no choice among replicas", highlight=False)
    else:
        console.print(f"replica: {choice['replica']}, {choice['why']} (policy {choice['policy']})", highlight=False)
        if choice["candidates"]:  # a tenant gets none: the load of replicas is of all tenants
            console.print(_candidates(choice))
            if num_more := choice["compared"] - len(choice["candidates"]):
                console.print(f"{num_more} more were compared", style="dim")
        console.print(_expectations(choice))
    console.print(_events(request))


def _candidates(choice: Mapping[str, Any]) -> Table:
    terms = [name for name in choice["candidates"][0] if name not in ("replica", "chosen")]
    table = simple_table("REPLICA", *map(_title, terms), wraps=())
    for row in choice["candidates"]:
        mark = "> " if row["chosen"] else "  "
        table.add_row(mark + row["replica"], *(_value(name, row.get(name)) for name in terms))
    return table


def _expectations(choice: Mapping[str, Any]) -> Table:
    table = simple_table("", "EXPECTED>", "HAPPENED>", wraps=())
    rows = (("ttft ms", "ttft_ms"), ("prompt tokens", "prompt_tokens"), ("cached tokens", "cached_tokens"))
    for words, name in rows:
        table.add_row(words, _number(choice["expected"][name]), _number(choice["happened"][name]))
    return table


def _events(request: Mapping[str, Any]) -> Table:
    table = simple_table("AT ms>", "EVENT", "")
    for event in request["events"]:
        facts = (f"{name} {value}" for name, value in event.items() if name not in ("at_ms", "event") and value)
        table.add_row(_number(event["at_ms"]), event["event"], ", ".join(facts))
    return table


def _title(name: str) -> str:
    words = name.removesuffix(_SECONDS).replace("_", " ").upper()
    return f"{words} ms>" if name.endswith(_SECONDS) else f"{words}>"


def _value(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1e3:,.1f}" if name.endswith(_SECONDS) else f"{value:,.0f}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
