"""What is left today of daily limits: asked of the gateways, and shown."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longboat.cli.shared.node_replies import Nodes, replies_of

if TYPE_CHECKING:
    from rich.table import Table

    from longboat.cluster.protocol.messages import GatewayReport

__all__ = ("limit_table", "limits_today", "usage_query")

AMOUNTS = ("used", "left", "limit")


def limits_today(nodes: Nodes, gateways: Sequence[GatewayReport]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return each daily limit with what is used and left of it, and by node why a gateway's part is missing.

    Raises ClusterError where there are gateways, and none replies.
    """
    from longboat.routing.capacity.daily_rests import with_rests

    replies, silent = replies_of(nodes, gateways, usage_query(1))
    rows = [row for reply in replies for row in reply["days"]]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return with_rests(replies[0].get("limits", ()) if replies else (), rows, today), silent


def usage_query(num_days: int, until: str = "") -> bytes:
    """Return the gateways' ``UsageQuery`` as it is sent; their own modules would take long to load."""
    query = {"query": "usage", "days": num_days} | ({"until": until} if until else {})
    return json.dumps(query, separators=(",", ":")).encode()


def limit_table(limits: Iterable[Mapping[str, Any]]) -> Table:
    """Make one row for each limit of today."""
    from longboat.cli.shared.console import simple_table

    table = simple_table("LIMIT OF TODAY (UTC)", "OF", "USED>", "LEFT>", "LIMIT>", wraps=())
    for limit in limits:
        owner = f"tenant {limit['tenant']}" if "tenant" in limit else f"external {limit['model']}"
        currency = limit.get("currency", "")
        is_money = limit["kind"] == "money_per_day"
        amounts = (f"{limit[name]:,.4f} {currency}".rstrip() if is_money else f"{limit[name]:,.0f}" for name in AMOUNTS)
        table.add_row(limit["kind"], owner, *amounts)
    return table
