"""The questions about a node's past: each reads one process, and joins the replies of several."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from longboat.core.errors import UserInputError
from longboat.gateway.admin.query import ObservedState, Query, Reply
from longboat.gateway.admin.routing_queries import RoutesQuery, TraceQuery
from longboat.gateway.records.metrics import merge
from longboat.gateway.records.recent import summary, timeline
from longboat.routing.capacity.daily_rests import daily_limits

__all__ = (
    "DAY_PATTERN",
    "USAGE_DAYS",
    "MetricsQuery",
    "NodeQuery",
    "ObservedState",
    "OwnerQuery",
    "RecentQuery",
    "TimelineQuery",
    "UsageQuery",
    "decode_query",
)

USAGE_DAYS = 31
DAY_PATTERN = r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$"
_USAGE_KEYS = ("day", "tenant", "model", "currency")

_Count = Annotated[int, msgspec.Meta(ge=1, le=999_999)]


class MetricsQuery(Query, frozen=True, tag="metrics"):
    """Asks for a snapshot of all counters: see ``metrics.merge``."""

    def local(self, state: ObservedState) -> Reply:
        snapshot = state.metrics.snapshot(state.table.upstreams(), state)
        snapshot["events"].update(_losses(state))
        table = state.table.table
        snapshot["scaling"] = dict(table.scaling) if table is not None else {}
        return snapshot

    def joined(self, replies: Sequence[Reply]) -> Reply:
        return merge(replies)


class TimelineQuery(Query, frozen=True, tag="timeline"):
    """Asks for ``{"request": timeline or None}`` of one recent request."""

    request_id: str
    # where given, only a request of this tenant is found
    tenant: str | None = None

    def local(self, state: ObservedState) -> Reply:
        record = state.recent.get(self.request_id, self.tenant)
        return {"request": timeline(record) if record else None}

    def joined(self, replies: Sequence[Reply]) -> Reply:
        found = [reply["request"] for reply in replies if reply["request"] is not None]
        return {"request": max(found, key=_received_s, default=None)}


class RecentQuery(Query, frozen=True, tag="recent"):
    """Asks for ``{"requests": [summary, …], "running": rows}``: those that ended, the newest first; and what runs now.

    A row has ``model``, ``replica``, ``tenant`` and the number of ``requests``.
    """

    # where given, only requests of this tenant are listed
    tenant: str | None = None
    limit: _Count = 50

    def local(self, state: ObservedState) -> Reply:
        streams = ((u.model, u.replica, s.tenant) for u in state.table.upstreams() for s in u.streams)
        running: Counter[tuple[str, ...]] = Counter(key for key in streams if self.tenant in (None, key[2]))
        ended = [summary(record) for record in state.recent.newest(self.tenant, self.limit)]
        return {"requests": ended, "running": _running_rows(running)}

    def joined(self, replies: Sequence[Reply]) -> Reply:
        rows = [row for reply in replies for row in reply["requests"]]
        running: Counter[tuple[str, ...]] = Counter()
        for row in (row for reply in replies for row in reply.get("running", ())):  # an older gateway has none
            running[row["model"], row["replica"], row["tenant"]] += row["requests"]
        newest = sorted(rows, key=_received_s, reverse=True)[: self.limit]
        return {"requests": newest, "running": _running_rows(running)}


class UsageQuery(Query, frozen=True, tag="usage"):
    """Asks for ``{"days": [UsageRow's fields …], "older": day, "limits": of a day, "shared": bool}``.

    older: the last of the days that were left out, where a reply would have had too many rows; else None. A question
    with this day as ``until`` gets them.
    shared: whether all processes of the node keep one file
    """

    days: _Count = USAGE_DAYS
    # where given, only rows of this tenant are returned
    tenant: str | None = None
    # the last day, such as ``2026-11-21``; empty: today
    until: Annotated[str, msgspec.Meta(pattern=DAY_PATTERN)] = ""
    is_slow: ClassVar[bool] = True

    def local(self, state: ObservedState) -> Reply:
        rows, is_cut = state.usage.page(self.days, state.clock.unix_s(), self.tenant, until=self.until)
        return {
            "days": [row._asdict() for row in rows],
            "older": _day_before(rows[0].day) if is_cut else None,
            "limits": daily_limits(state.live.policy),
            "shared": state.config.state_folder is not None,
        }

    def joined(self, replies: Sequence[Reply]) -> Reply:
        """Take the largest count of a shared file, which lacks only what others added in the last second; else add."""
        shared = any(reply["shared"] for reply in replies)
        older = max((reply.get("older") or "" for reply in replies), default="")  # of which not all replies have rows
        rows: dict[tuple[str, ...], Reply] = {}
        for row in (row for reply in replies for row in reply["days"] if row["day"] > older):
            key = tuple(row.get(name, "") for name in _USAGE_KEYS)  # older gateways say no currency
            other = rows.setdefault(key, row)
            if other is not row and not (shared and other == row):
                rows[key] = _joined_row(other, row, shared=shared)
        limits = replies[0]["limits"] if replies else []
        days = [rows[key] for key in sorted(rows)]
        return {"days": days, "older": older or None, "limits": limits, "shared": shared}


class OwnerQuery(Query, frozen=True, tag="owner"):
    """Asks for ``{"owner": {"tenant", "model", "key"} or None}``: the holder of a response of the Responses API."""

    response_id: str

    def local(self, state: ObservedState) -> Reply:
        owner = state.owners.find(self.response_id)
        return {"owner": owner._asdict() if owner else None}

    def joined(self, replies: Sequence[Reply]) -> Reply:
        return {"owner": next((reply["owner"] for reply in replies if reply["owner"] is not None), None)}


NodeQuery = MetricsQuery | TimelineQuery | RecentQuery | UsageQuery | OwnerQuery | RoutesQuery | TraceQuery

_DECODER = msgspec.json.Decoder(NodeQuery)


def decode_query(document: bytes) -> NodeQuery:
    """Read a query. Raise UserInputError where it is none."""
    try:
        query: NodeQuery = _DECODER.decode(document)
    except msgspec.MsgspecError as error:
        raise UserInputError(f"the query cannot be read: {error}", hint='send {"query": "metrics"}, …') from error
    return query


def _losses(state: ObservedState) -> dict[str, int]:
    """Count what was dropped so that requests were never held up."""
    losses = {}
    accounting = state.accounting
    if accounting.access_log is not None:
        losses["log_lines_dropped"] = accounting.access_log.num_dropped
    if accounting.tracer is not None:
        losses["spans_dropped"] = accounting.tracer.num_dropped
    if accounting.remote_counters is not None:
        losses["counted_without_redis"] = accounting.remote_counters.num_degraded
    return losses


def _running_rows(counts: Mapping[tuple[str, ...], int]) -> list[Reply]:
    names = ("model", "replica", "tenant")
    return [{**dict(zip(names, key, strict=True)), "requests": count} for key, count in counts.items()]


def _day_before(day: str) -> str:
    return (datetime.date.fromisoformat(day) - datetime.timedelta(days=1)).isoformat()


def _received_s(row: Mapping[str, Any]) -> float:
    return float(row["received"])


def _joined_row(one: Reply, two: Reply, *, shared: bool) -> Reply:
    join = max if shared else int.__add__
    return {name: value if name in _USAGE_KEYS else join(value, two[name]) for name, value in one.items()}
