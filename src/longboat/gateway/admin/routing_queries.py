"""The questions about routing: what replicas have to do and hold, and the trace of what requests were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from longboat.gateway.admin.query import ObservedState, Query, Reply

if TYPE_CHECKING:
    from longboat.gateway.upstreams.pool import Pool
    from longboat.gateway.upstreams.upstream import Upstream
    from longboat.routing.prefixes.accuracy import AccuracyFigures

__all__ = ("RoutesQuery", "TraceQuery")


class RoutesQuery(Query, frozen=True, tag="routes"):
    """Asks for ``{"routes": [one row for each replica], "policy": its name}`` of a model; empty: of all models."""

    model: str = ""

    def local(self, state: ObservedState) -> Reply:
        pools = [pool for pool in state.table.pools() if self.model in ("", pool.model)]
        rows = [_row(pool, upstream) for pool in pools for upstream in pool.upstreams]
        return {"routes": rows, "models": [pool.model for pool in pools], "policy": _policies(pools)}

    def joined(self, replies: Sequence[Reply]) -> Reply:
        rows: dict[tuple[str, str], Reply] = {}
        for row in (row for reply in replies for row in reply["routes"]):
            key = (row["model"], row["replica"])
            rows[key] = _added(rows[key], row) if key in rows else row
        first = replies[0] if replies else {"models": [], "policy": ""}
        return {"routes": list(rows.values()), "models": first["models"], "policy": first["policy"]}


class TraceQuery(Query, frozen=True, tag="trace"):
    """Asks for ``{"rows": [requests that ended since the last such question], "dropped": how many were lost}``.

    The first question begins the recording, which ends 30 s after the last one.
    """

    # name of the reader; several readers each get all rows
    reader: str

    def local(self, state: ObservedState) -> Reply:
        return state.recorder.take(self.reader, state.clock.monotonic_s())

    def joined(self, replies: Sequence[Reply]) -> Reply:
        rows = sorted((row for reply in replies for row in reply["rows"]), key=_time_of)
        return {"rows": rows, "dropped": sum(reply["dropped"] for reply in replies)}


_COUNTS = ("in_flight", "sent", "prefilling", "prefill_tokens", "decode_tokens")
"""Numbers of one process, which are added up."""


def _row(pool: Pool, upstream: Upstream) -> Reply:
    load = pool.router.load_of(upstream.key)
    report = load.report
    engine: Reply = {} if report is None else {"running": report.running, "waiting": report.waiting}
    if report is not None:
        engine |= {"kv_usage": round(report.kv_usage, 4), "queued_tokens": report.queued_tokens}
    return {
        "model": pool.model,
        "replica": upstream.replica,
        "ready": upstream.ready,
        "suspect": upstream.suspect,
        "in_flight": upstream.outstanding,
        "sent": upstream.num_sent,
        "prefilling": load.prefills,
        "prefill_tokens": load.prefill_tokens,
        "decode_tokens": load.decode_tokens,
        "engine": engine,
        "tells": load.tells,
        "hits": _hits(load.accuracy.snapshot()),
    }


def _hits(figures: AccuracyFigures) -> dict[str, int]:
    """Return the sums, which can be added up."""
    return {
        "requests": figures.requests,
        "prompt_tokens": figures.prompt_tokens,
        "expected_tokens": figures.expected_tokens,
        "cached_tokens": figures.cached_tokens,
        "right_tokens": figures.right_tokens,
    }


def _added(one: Reply, two: Reply) -> Reply:
    hits = {name: count + two["hits"].get(name, 0) for name, count in one["hits"].items()}
    engine = one["engine"] or two["engine"]
    return {
        **one,
        **{name: one[name] + two.get(name, 0) for name in _COUNTS if name in one},
        "hits": hits,
        "engine": engine,
    }


def _policies(pools: Iterable[Pool]) -> str:
    return next((pool.router.policy.name for pool in pools), "")


def _time_of(row: dict[str, Any]) -> float:
    return float(row["time_s"])
