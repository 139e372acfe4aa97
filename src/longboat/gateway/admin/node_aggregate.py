"""The joint knowledge of one node's workers: their parent asks all of them and joins the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from longboat.gateway.admin.node_query import MetricsQuery, NodeQuery
from longboat.gateway.admin.node_view import Answers
from longboat.gateway.records.metrics import merge, process_gauges

__all__ = ("NodeAggregate",)

_GAUGES = ("in_flight", "waiting", "preempted")


class NodeAggregate:
    """Asks every worker at once. A worker that does not reply in time is named in ``missing``.

    Counters never go back: those of a worker that ended stay in the sum, as they were in its last reply.
    """

    def __init__(self, workers: Mapping[str, Answers]) -> None:
        """workers: the controls by name, each with a timeout of about a second"""
        self._workers = workers
        # the newest snapshot of each worker
        self._last: dict[str, dict[str, Any]] = {}
        # the sum of the counters of processes that were replaced
        self._ended: dict[str, Any] = merge([])

    async def ask(self, query: NodeQuery) -> dict[str, Any]:
        calls = (worker.ask(query) for worker in self._workers.values())
        by_name = dict(zip(self._workers, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        replies = {name: reply for name, reply in by_name.items() if isinstance(reply, dict)}
        parts = self._snapshots(replies) if isinstance(query, MetricsQuery) else list(replies.values())
        return {**query.joined(parts), "missing": [name for name in by_name if name not in replies]}

    def _snapshots(self, snapshots: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Add the counters of workers that are away, of those that ended, and the parent's own gauges."""
        for name, snapshot in snapshots.items():
            self._keep(name, snapshot)
        current = [snapshots.get(name) or _counts_of(last) for name, last in self._last.items()]
        return [self._ended, *current, {**merge([]), "processes": [process_gauges("parent")]}]

    def _keep(self, name: str, snapshot: dict[str, Any]) -> None:
        last = self._last.get(name)
        if last is not None and _pid(last) != _pid(snapshot):
            self._ended = merge([self._ended, _counts_of(last)])
        self._last[name] = snapshot


def _pid(snapshot: Mapping[str, Any]) -> Any:
    return snapshot["processes"][0]["pid"]


def _counts_of(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what a process counted, without what it was doing: it is away."""
    series = [{**item, **dict.fromkeys(_GAUGES, 0)} for item in snapshot["series"]]
    return {**snapshot, "series": series, "upstreams": [], "processes": [], "scaling": {}}
