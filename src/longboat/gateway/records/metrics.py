"""The counters of a gateway process, cheap enough for every request and every block of a stream."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from longboat.clock import until_tick_s
from longboat.gateway.native.leaf_work import Histogram
from longboat.gateway.records.newest_answers import NewestAnswers

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
    "add_counts",
    "merge",
)

OTHER = "other"
"""The label of models and tenants beyond the bound."""

OUTCOMES = (
    "ok",  # the whole response was sent, with a status below 400
    "client_error",  # the engine replied 4xx
    "engine_error",  # the engine replied 5xx, or no replica replied
    "broken",  # the response ended in its middle
    "client_left",  # the client closed its connection first
    "expired",  # the deadline passed while the request waited
    "refused",  # the gateway refused it when tenant and model were known (quota, queue, no replica)
)
"""How a request for a model ended."""

REQUEST_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
ITL_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
LAG_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_MAX_SERIES = 2000
_PAIR_COUNTS = ("refusals", "fallbacks", "resumes", "external", "costs", "charges")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class UpstreamView(Protocol):
    """An endpoint, as the metrics show it."""

    model: str
    replica: str
    ready: bool

    @property
    def outstanding(self) -> int: ...
    @property
    def suspect(self) -> bool: ...


class ProcessGauges(Protocol):
    """What a process knows of itself besides its counters."""

    connections: set[Any]
    held_bytes: int


class Series:  # size: a plain record of counters
    """Counters of one model and tenant. The caller keeps ``in_flight`` and ``waiting`` itself."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "e2e", "expected_tokens", "found_tokens", "held_tokens", "in_flight",
        "itl", "observe_e2e", "observe_queue", "observe_ttft", "outcomes", "preempted", "preemptions",
        "preemptions_denied", "prompt_tokens", "queue", "retries", "ttft", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        # requests that began and have not ended
        self.in_flight = 0
        # those of them that wait in a queue
        self.waiting = 0
        # those of them that were paused for a better class
        self.preempted = 0
        # pauses of streams, and requests for which no stream of a worse class could be paused
        self.preemptions = self.preemptions_denied = 0
        self.retries = 0
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        # of requests for which a replica was chosen: cached tokens as the choice expected them, as engines counted
        # them, and what both agree on
        self.expected_tokens = self.held_tokens = self.found_tokens = 0
        self.outcomes: dict[str, int] = {}
        self.ttft = Histogram(REQUEST_BOUNDS_S)
        self.e2e = Histogram(REQUEST_BOUNDS_S)
        self.queue = Histogram(REQUEST_BOUNDS_S)
        # times between two blocks of a stream
        self.itl = Histogram(ITL_BOUNDS_S)
        # compiled code would look a method up by its name at each call
        self.observe_ttft, self.observe_e2e = self.ttft.observe, self.e2e.observe
        self.observe_queue = self.queue.observe

    def done(
        self,
        outcome: str,
        ttft_s: float | None,
        e2e_s: float | None,
        queue_s: float | None,
        prompt: int | None,
        completion: int | None,
        cached: int | None,
        retries: int,
    ) -> None:
        """Count a request that ended.

        outcome: one of OUTCOMES
        ttft_s: None where no token was sent: counts of tokens and refusals take a millisecond, and would hide how
        long clients wait for tokens
        e2e_s: None where no byte was sent; such a request is only in the histogram of the queue
        queue_s: None where the request was refused before it could wait: clients that try such requests again at
        once would hide how long the others wait
        prompt, completion, cached: tokens; None is unknown and counts nothing
        """
        outcomes = self.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if queue_s is not None:
            self.observe_queue(queue_s)
        if ttft_s is not None:
            self.observe_ttft(ttft_s)
        if e2e_s is not None:
            self.observe_e2e(e2e_s)
        if prompt:
            self.prompt_tokens += prompt
        if completion:
            self.completion_tokens += completion
        if cached:
            self.cached_tokens += cached
        if retries:
            self.retries += retries

    def compared(self, expected: int, held: int) -> None:
        """Count a prompt's cached tokens, as the choice of its replica expected them and as its engine found them."""
        self.expected_tokens += expected
        self.held_tokens += held
        self.found_tokens += min(expected, held)

    def snapshot(self) -> dict[str, Any]:
        return {
            "expected_tokens": self.expected_tokens,
            "held_tokens": self.held_tokens,
            "found_tokens": self.found_tokens,
            "in_flight": self.in_flight,
            "waiting": self.waiting,
            "preempted": self.preempted,
            "preemptions": self.preemptions,
            "preemptions_denied": self.preemptions_denied,
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


class _Labels:
    """The names that get a label of their own: the first ones, up to a bound."""

    def __init__(self, max_values: int) -> None:
        self._max = max_values
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """Return the name, or ``other`` beyond the bound."""
        if name in self._known:
            return name
        if len(self._known) >= self._max:
            return OTHER
        self._known.add(name)
        return name


class Metrics:
    """All counters of one process.

    Tenants beyond ``max_label_values`` get the label ``other``; so do models, except in the counters of requests, from
    which numbers of replicas follow.
    """

    def __init__(self, *, max_label_values: int = 200, process: str = "gateway") -> None:
        self._process = process
        # by the names that were requested; several may share one series
        self._series: dict[tuple[str, str], Series] = {}
        # by label
        self._shown: dict[tuple[str, str], Series] = {}
        self._models = _Labels(max_label_values)
        self._tenants = _Labels(max_label_values)
        # refusals by code and tenant, fallbacks by requested and served model, resumes by reason and result, external
        # requests by endpoint and outcome, costs by model and currency, charges by tenant and currency
        self._pairs: dict[str, dict[tuple[str, str], int]] = {name: {} for name in _PAIR_COUNTS}
        self._events: dict[str, int] = {}
        self._gap, self._detection = Histogram(REQUEST_BOUNDS_S), Histogram(REQUEST_BOUNDS_S)
        self._pause = Histogram(REQUEST_BOUNDS_S)
        self.lag = LoopLag()
        self.answers = NewestAnswers()

    def series(self, model: str, tenant: str) -> Series:
        """Return the counters of this model and tenant, the same object every time.

        model: a name of the endpoint table, never what a client wrote
        """
        return self._series.get((model, tenant)) or self._new_series(model, tenant)

    def refused(self, code: str, tenant: str = "") -> None:
        """Count an error response of the gateway itself. tenant: empty where it is unknown."""
        label = self._tenants.of(tenant) if tenant else ""
        self._count_pair("refusals", code, label)

    def fell_back(self, requested: str, served: str) -> None:
        """Count a request for one model that went to another, because the first could not serve it."""
        self._count_pair("fallbacks", self._models.of(requested), self._models.of(served))

    def answered_outside(self, endpoint: str, outcome: str) -> None:
        """Count a request that an external address ended."""
        self._count_pair("external", self._models.of(endpoint), outcome)

    def paid(self, model: str, currency: str, nanos: int) -> None:
        """Count money, in billionths of its currency."""
        self._count_pair("costs", self._models.of(model), currency, nanos)

    def charged(self, tenant: str, currency: str, nanos: int) -> None:
        """Count what a tenant's request cost, in billionths of the currency."""
        self._count_pair("charges", self._tenants.of(tenant), currency, nanos)

    def resumed(self, reason: str, result: str, *, gap_s: float, detection_s: float) -> None:
        """Count a response that lost its engine.

        reason: why, a fixed word; result: ``resumed`` | ``failed``
        gap_s: how long the client received nothing; detection_s: how long the engine was silent before
        """
        self._count_pair("resumes", reason, result)
        if reason == "preempted":
            self._pause.observe(gap_s)
            return
        self._gap.observe(gap_s)
        self._detection.observe(detection_s)

    def event(self, name: str, times: int = 1) -> None:
        """Count a rare event that matters to an operator (``redis_unavailable``). name: a fixed word."""
        self._events[name] = self._events.get(name, 0) + times

    def snapshot(self, upstreams: Iterable[UpstreamView] = (), gauges: ProcessGauges | None = None) -> dict[str, Any]:
        """Return everything as one JSON document, for ``merge`` and ``render``."""
        return {
            "series": self.series_counts(),
            **{name: _rows(counts) for name, counts in self._pairs.items()},
            "events": dict(self._events),
            "resume_times": {
                "gap": self._gap.counts(),
                "detection": self._detection.counts(),
                "pause": self._pause.counts(),
            },
            "upstreams": [_upstream(u) for u in upstreams],
            "processes": [{**process_gauges(self._process, gauges), **self.lag.snapshot()}],
            "scaling": {},
        }

    def series_counts(self) -> list[dict[str, Any]]:
        """Return the counters of each model and tenant."""
        return [{"model": m, "tenant": t, **series.snapshot()} for (m, t), series in self._shown.items()]

    def _count_pair(self, name: str, one: str, two: str, times: int = 1) -> None:
        counts = self._pairs[name]
        counts[one, two] = counts.get((one, two), 0) + times

    def _new_series(self, model: str, tenant: str) -> Series:
        labels = (model, self._tenants.of(tenant))
        if labels not in self._shown and len(self._shown) >= _MAX_SERIES:
            labels = (labels[0], OTHER)
        series = self._shown.setdefault(labels, Series())
        if len(self._series) < 10 * _MAX_SERIES:  # beyond that, names are looked up by label each time
            self._series[model, tenant] = series
        return series


class LoopLag:
    """How late the event loop runs. Call ``tick`` every 100 ms: it measures by how much each call came too late."""

    TICK_S = 0.1
    _WINDOW_TICKS = 300

    def __init__(self) -> None:
        self._histogram = Histogram(LAG_BOUNDS_S)
        self._due_s = 0.0
        self._ticks = 0
        self._max_s = self._max_before_s = 0.0

    def tick(self, now_s: float) -> float:
        """Count this tick. Return when (on the same clock) the next one is due, for the caller's timer."""
        if self._due_s:
            self._observe(max(0.0, now_s - self._due_s))
        self._due_s = now_s + until_tick_s(self.TICK_S, now_s)
        return self._due_s

    def snapshot(self) -> dict[str, Any]:
        """Return the histogram and ``lag_max_s``, the longest delay of the last 30 to 60 seconds."""
        return {"lag": self._histogram.counts(), "lag_max_s": max(self._max_s, self._max_before_s)}

    def _observe(self, lag_s: float) -> None:
        self._histogram.observe(lag_s)
        self._ticks += 1
        if self._ticks % self._WINDOW_TICKS == 0:
            self._max_before_s, self._max_s = self._max_s, 0.0
        self._max_s = max(self._max_s, lag_s)


def merge(snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the snapshots of several processes to one: counts are added up, processes stay apart."""
    series: dict[tuple[str, str], dict[str, Any]] = {}
    upstreams: dict[tuple[str, str], dict[str, Any]] = {}
    counts: dict[str, dict[tuple[str, str], int]] = {name: {} for name in _PAIR_COUNTS}
    events: Counter[str] = Counter()
    times: dict[str, Any] = {}
    processes: list[Any] = []
    scaling: dict[str, Any] = {}
    for snapshot in snapshots:
        scaling.update(snapshot.get("scaling", {}))  # each process has the same table
        for item in snapshot["series"]:
            add_counts(series.setdefault((item["model"], item["tenant"]), {}), item)
        for item in snapshot["upstreams"]:
            add_counts(upstreams.setdefault((item["model"], item["replica"]), {}), item)
        for name, total in counts.items():
            for one, two, count in snapshot[name]:
                total[one, two] = total.get((one, two), 0) + count
        events.update(snapshot["events"])
        add_counts(times, snapshot["resume_times"])
        processes.extend(snapshot["processes"])
    return {
        "series": list(series.values()),
        **{name: _rows(total) for name, total in counts.items()},
        "events": dict(events),
        "resume_times": times,
        "upstreams": list(upstreams.values()),
        "processes": processes,
        "scaling": scaling,
    }


def process_gauges(name: str, gauges: ProcessGauges | None = None) -> dict[str, Any]:
    """Measure CPU seconds (user and system) and resident bytes of this process; add what ``gauges`` holds."""
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


def _rows(counts: Mapping[tuple[str, str], int]) -> list[list[Any]]:
    return [[*key, count] for key, count in counts.items()]


def _upstream(view: UpstreamView) -> dict[str, Any]:
    return {
        "model": view.model,
        "replica": view.replica,
        "ready": int(view.ready),
        "suspect": int(view.suspect),
        "outstanding": view.outstanding,
        "seen_by": 1,
    }


def add_counts(total: dict[str, Any], item: Mapping[str, Any]) -> None:
    """Add numbers, and lists and mappings of numbers element by element; keep texts."""
    for name, value in item.items():
        old = total.get(name)
        if isinstance(value, dict):
            add_counts(total.setdefault(name, {}), value)
        elif old is None:
            total[name] = value.copy() if isinstance(value, list) else value
        elif isinstance(value, list):
            total[name] = [one + two for one, two in zip(old, value, strict=True)]
        elif not isinstance(value, str):
            total[name] = old + value
