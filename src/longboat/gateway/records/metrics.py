"""What a gateway process counts about itself, cheap enough to be counted for every request and every block."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from longboat.gateway.native.leaf_work import Histogram

__all__ = (
    "ITL_BOUNDS_S",
    "LAG_BOUNDS_S",
    "OTHER",
    "OUTCOMES",
    "REQUEST_BOUNDS_S",
    "Metrics",
    "ProcessGauges",
    "Series",
    "UpstreamView",
    "merge",
)

OTHER = "other"
"""Label of the models and tenants beyond the bound."""

OUTCOMES = ("ok", "client_error", "engine_error", "broken", "client_left", "expired", "refused")
"""How a request that was meant for a model ended.

ok: answered in full with a status below 400; client_error: the engine answered 4xx; engine_error: it answered 5xx, or
no replica did; broken: the answer ended in its middle; client_left: the client went first; expired: its deadline
passed while it waited; refused: the gateway refused it after its tenant and model were known (quota, queue, no replica)
"""

REQUEST_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
ITL_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
LAG_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_MAX_SERIES = 2000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class UpstreamView(Protocol):
    """An endpoint as the metrics show it."""

    model: str
    replica: str
    ready: bool
    suspect: bool
    outstanding: int


class ProcessGauges(Protocol):
    """What a process knows of itself besides its metrics."""

    connections: set[Any]
    held_bytes: int


class Series:
    """Counters of one model and tenant. itl: times between two blocks of a stream.

    in_flight: begun and not done; waiting: those of them in a queue. Both are kept by the caller: ``+= 1`` where it
    begins or waits, ``-= 1`` where it ends or waits no more.
    """

    __slots__ = (
        "cached_tokens", "completion_tokens", "e2e", "in_flight", "itl", "outcomes", "prompt_tokens", "queue",
        "retries", "ttft", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.in_flight = self.waiting = self.retries = 0
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.outcomes: dict[str, int] = {}
        self.ttft = Histogram(REQUEST_BOUNDS_S)
        self.e2e = Histogram(REQUEST_BOUNDS_S)
        self.queue = Histogram(REQUEST_BOUNDS_S)
        self.itl = Histogram(ITL_BOUNDS_S)

    def done(
        self,
        outcome: str,
        ttft_s: float | None,
        e2e_s: float,
        queue_s: float,
        prompt: int | None,
        completion: int | None,
        cached: int | None,
        retries: int,
    ) -> None:
        """A request ended. outcome: one of OUTCOMES; tokens: None is unknown and counts nothing.

        ttft_s: None where no byte was answered; such a request is in no latency histogram but that of the queue.
        """
        outcomes = self.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        self.queue.observe(queue_s)
        if ttft_s is not None:
            self.ttft.observe(ttft_s)
            self.e2e.observe(e2e_s)
        if prompt:
            self.prompt_tokens += prompt
        if completion:
            self.completion_tokens += completion
        if cached:
            self.cached_tokens += cached
        if retries:
            self.retries += retries

    def snapshot(self) -> dict[str, Any]:
        return {
            "in_flight": self.in_flight,
            "waiting": self.waiting,
            "retries": self.retries,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "outcomes": dict(self.outcomes),
            "ttft": self.ttft.counts(),
            "itl": self.itl.counts(),
            "e2e": self.e2e.counts(),
            "queue": self.queue.counts(),
        }


class Metrics:
    """All counters of one process. Labels beyond ``max_label_values`` models or tenants become ``other``."""

    def __init__(self, *, max_label_values: int = 200, process: str = "gateway") -> None:
        self._max = max_label_values
        self._process = process
        self._series: dict[tuple[str, str], Series] = {}  # as asked for, several may share one
        self._shown: dict[tuple[str, str], Series] = {}
        self._models: set[str] = set()
        self._tenants: set[str] = set()
        self._refusals: dict[tuple[str, str], int] = {}
        self._fallbacks: dict[tuple[str, str], int] = {}
        self._events: dict[str, int] = {}
        self._resumes: dict[tuple[str, str], int] = {}
        self._gap, self._detection = Histogram(REQUEST_BOUNDS_S), Histogram(REQUEST_BOUNDS_S)
        self.lag = LoopLag()

    def series(self, model: str, tenant: str) -> Series:
        """Where requests of this model and tenant are counted; the same object every time.

        model: a name of the table, never what a client wrote
        """
        return self._series.get((model, tenant)) or self._new_series(model, tenant)

    def refused(self, code: str, tenant: str = "") -> None:
        """The gateway itself answered with an error. code: that of the refusal; tenant: empty where it is unknown."""
        label = self._label(self._tenants, tenant) if tenant else ""
        key = (code, label)
        self._refusals[key] = self._refusals.get(key, 0) + 1

    def fell_back(self, requested: str, served: str) -> None:
        """A request for one model went to another, because the first could not answer."""
        key = (self._label(self._models, requested), self._label(self._models, served))
        self._fallbacks[key] = self._fallbacks.get(key, 0) + 1

    def resumed(self, reason: str, result: str, *, gap_s: float, detection_s: float) -> None:
        """An answer that its engine had left. reason: why it did, a fixed word; result: ``resumed`` | ``failed``

        gap_s: how long the client got nothing of it; detection_s: how long the engine was silent before
        """
        key = (reason, result)
        self._resumes[key] = self._resumes.get(key, 0) + 1
        self._gap.observe(gap_s)
        self._detection.observe(detection_s)

    def event(self, name: str, times: int = 1) -> None:
        """Something rare that an operator wants to know of (``redis_unavailable``). name: a fixed word."""
        self._events[name] = self._events.get(name, 0) + times

    def snapshot(self, upstreams: Iterable[UpstreamView] = (), gauges: ProcessGauges | None = None) -> dict[str, Any]:
        """Everything as one JSON document, for ``merge`` and ``render``."""
        shown = self._shown.items()
        return {
            "series": [{"model": m, "tenant": t, **series.snapshot()} for (m, t), series in shown],
            "refusals": [[code, tenant, count] for (code, tenant), count in self._refusals.items()],
            "fallbacks": [[asked, served, count] for (asked, served), count in self._fallbacks.items()],
            "events": dict(self._events),
            "resumes": [[reason, result, count] for (reason, result), count in self._resumes.items()],
            "resume_times": {"gap": self._gap.counts(), "detection": self._detection.counts()},
            "upstreams": [_upstream(u) for u in upstreams],
            "processes": [{**process_gauges(self._process, gauges), **self.lag.snapshot()}],
        }

    def _new_series(self, model: str, tenant: str) -> Series:
        labels = (self._label(self._models, model), self._label(self._tenants, tenant))
        if labels not in self._shown and len(self._shown) >= _MAX_SERIES:
            labels = (labels[0], OTHER)
        series = self._shown.setdefault(labels, Series())
        if len(self._series) < 10 * _MAX_SERIES:  # beyond that the names are found by the long way each time
            self._series[model, tenant] = series
        return series

    def _label(self, known: set[str], name: str) -> str:
        if name in known:
            return name
        if len(known) >= self._max:
            return OTHER
        known.add(name)
        return name


class LoopLag:
    """How late the event loop comes: ``tick`` is to be called every 100 ms, and measures by how much it was not."""

    TICK_S = 0.1
    _WINDOW_TICKS = 300

    def __init__(self) -> None:
        self._histogram = Histogram(LAG_BOUNDS_S)
        self._due_s = 0.0
        self._ticks = 0
        self._max_s = self._max_before_s = 0.0

    def tick(self, now_s: float) -> float:
        """Count this tick. Returns when (on the same clock) the next is due; the caller sets its timer to it."""
        if self._due_s:
            self._observe(max(0.0, now_s - self._due_s))
        self._due_s = now_s + self.TICK_S
        return self._due_s

    def snapshot(self) -> dict[str, Any]:
        """lag_max_s: the longest of the last 30 to 60 seconds."""
        return {"lag": self._histogram.counts(), "lag_max_s": max(self._max_s, self._max_before_s)}

    def _observe(self, lag_s: float) -> None:
        self._histogram.observe(lag_s)
        self._ticks += 1
        if self._ticks % self._WINDOW_TICKS == 0:
            self._max_before_s, self._max_s = self._max_s, 0.0
        self._max_s = max(self._max_s, lag_s)


def merge(snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One snapshot of several processes: counts are added up, processes stay apart."""
    series: dict[tuple[str, str], dict[str, Any]] = {}
    upstreams: dict[tuple[str, str], dict[str, Any]] = {}
    refusals: dict[tuple[str, str], int] = {}
    fallbacks: dict[tuple[str, str], int] = {}
    resumes: dict[tuple[str, str], int] = {}
    times: dict[tuple[str, str], dict[str, Any]] = {}
    events: dict[str, int] = {}
    processes: list[Any] = []
    for snapshot in snapshots:
        for item in snapshot["series"]:
            _add_into(series, (item["model"], item["tenant"]), item)
        for item in snapshot["upstreams"]:
            _add_into(upstreams, (item["model"], item["replica"]), item)
        for one, two, count in snapshot["refusals"]:
            refusals[one, two] = refusals.get((one, two), 0) + count
        for one, two, count in snapshot["fallbacks"]:
            fallbacks[one, two] = fallbacks.get((one, two), 0) + count
        for one, two, count in snapshot.get("resumes", ()):
            resumes[one, two] = resumes.get((one, two), 0) + count
        if told := snapshot.get("resume_times"):
            _add_into(times, ("", ""), told)
        for name, count in snapshot["events"].items():
            events[name] = events.get(name, 0) + count
        processes.extend(snapshot["processes"])
    return {
        "series": list(series.values()),
        "refusals": [[*key, count] for key, count in refusals.items()],
        "fallbacks": [[*key, count] for key, count in fallbacks.items()],
        "events": events,
        "resumes": [[*key, count] for key, count in resumes.items()],
        "resume_times": times.get(("", ""), {}),
        "upstreams": list(upstreams.values()),
        "processes": processes,
    }


def process_gauges(name: str, gauges: ProcessGauges | None = None) -> dict[str, Any]:
    """CPU seconds (user and system) and resident bytes of this process, and what ``gauges`` adds."""
    return {
        "process": name,
        "pid": os.getpid(),
        "cpu_s": time.process_time(),
        "rss_bytes": _rss_bytes(),
        "connections": len(gauges.connections) if gauges else 0,
        "held_bytes": gauges.held_bytes if gauges else 0,
    }


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _upstream(view: UpstreamView) -> dict[str, Any]:
    return {
        "model": view.model,
        "replica": view.replica,
        "ready": int(view.ready),
        "suspect": int(view.suspect),
        "outstanding": view.outstanding,
        "seen_by": 1,
    }


def _add_into(total: dict[tuple[str, str], dict[str, Any]], key: tuple[str, str], item: Mapping[str, Any]) -> None:
    """Numbers are added, lists and mappings of numbers element by element; texts stay."""
    old = total.get(key)
    if old is None:
        total[key] = {name: _copy(value) for name, value in item.items()}
        return
    for name, value in item.items():
        if isinstance(value, list):
            old[name] = [a + b for a, b in zip(old[name], value, strict=True)]
        elif isinstance(value, dict):
            old[name] = {k: old[name].get(k, 0) + value.get(k, 0) for k in {**old[name], **value}}
        elif not isinstance(value, str):
            old[name] += value


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict) else value
