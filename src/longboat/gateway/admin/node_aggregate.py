"""What the workers of one node know together: their parent asks all of them and adds up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from longboat.gateway.admin.node_view import USAGE_DAYS, Answers
from longboat.gateway.records.metrics import merge, process_gauges

__all__ = ("GatheredAnswers",)

_USAGE_KEYS = ("day", "tenant", "model")

Ask = Callable[[Answers], Awaitable[dict[str, Any]]]


class GatheredAnswers:
    """Asks every worker at once. One that does not answer in time is named in ``missing``.

    Counters never go back: those of a worker that ended stay in the sum, as they were when it was last asked.

    workers: name → its control, with a timeout of about a second
    """

    def __init__(self, workers: Mapping[str, Answers]) -> None:
        self._workers = workers
        self._last: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, Any] = merge([])

    async def metrics(self) -> dict[str, Any]:
        snapshots, missing = await self._ask(lambda control: control.metrics())
        for name, snapshot in snapshots.items():
            self._keep(name, snapshot)
        current = [snapshots.get(name) or _counts_of(last) for name, last in self._last.items()]
        own = {**merge([]), "processes": [process_gauges("parent")]}
        return {**merge([self._ended, *current, own]), "missing": missing}

    async def request(self, request_id: str, tenant: str | None = None) -> dict[str, Any]:
        answers, missing = await self._ask(lambda control: control.request(request_id, tenant))
        found = [a["request"] for a in answers.values() if a["request"] is not None]
        newest = max(found, key=lambda request: float(request["received"]), default=None)
        return {"request": newest, "missing": missing}

    async def requests(self, tenant: str | None, limit: int) -> dict[str, Any]:
        answers, missing = await self._ask(lambda control: control.requests(tenant, limit))
        rows = [row for answer in answers.values() for row in answer["requests"]]
        rows.sort(key=lambda row: float(row["received"]), reverse=True)
        return {"requests": rows[:limit], "missing": missing}

    async def usage(self, days: int = USAGE_DAYS) -> dict[str, Any]:
        """Of a shared file each worker tells all but what others added in the last second; else all are added up."""
        answers, missing = await self._ask(lambda control: control.usage(days))
        shared = any(answer["shared"] for answer in answers.values())
        rows: dict[tuple[str, ...], dict[str, Any]] = {}
        for answer in answers.values():
            for row in answer["days"]:
                key = tuple(row[name] for name in _USAGE_KEYS)
                rows[key] = _joined(rows[key], row, shared=shared) if key in rows else row
        return {"days": [rows[key] for key in sorted(rows)], "shared": shared, "missing": missing}

    async def owner(self, response_id: str) -> dict[str, Any]:
        answers, missing = await self._ask(lambda control: control.owner(response_id))
        found = [answer["owner"] for answer in answers.values() if answer["owner"] is not None]
        return {"owner": found[0] if found else None, "missing": missing}

    async def _ask(self, ask: Ask) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Answers by name, and who gave none."""
        results = await asyncio.gather(*(ask(control) for control in self._workers.values()), return_exceptions=True)
        by_name = dict(zip(self._workers, results, strict=True))
        answers = {name: result for name, result in by_name.items() if isinstance(result, dict)}
        return answers, [name for name in by_name if name not in answers]

    def _keep(self, name: str, snapshot: dict[str, Any]) -> None:
        last = self._last.get(name)
        if last is not None and _pid(last) != _pid(snapshot):
            self._ended = merge([self._ended, _counts_of(last)])
        self._last[name] = snapshot


def _pid(snapshot: Mapping[str, Any]) -> Any:
    return snapshot["processes"][0]["pid"]


def _counts_of(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot of a process that is not there: what it counted stays, what it did is over."""
    series = [{**item, "in_flight": 0, "waiting": 0} for item in snapshot["series"]]
    return {**snapshot, "series": series, "upstreams": [], "processes": []}


def _joined(one: Mapping[str, Any], two: Mapping[str, Any], *, shared: bool) -> dict[str, Any]:
    joined = {}
    for name, value in one.items():
        if name in _USAGE_KEYS:
            joined[name] = value
        else:
            joined[name] = max(value, two[name]) if shared else value + two[name]
    return joined
