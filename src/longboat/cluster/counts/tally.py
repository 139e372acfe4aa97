"""Differences of what gateways count: how many requests and tokens came since the last look. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from longboat.core.scaling import (
    Latency,
    Objective,
    Quantiles,
    ScalingTarget,
    SloTarget,
    quantiles_among,
    some_lengths,
)

__all__ = ("Tally", "TallyOfModel", "quantiles_of")

Counts = Mapping[str, Any]
GROWING = ("arrived", "ended", "prompt_tokens", "completion_tokens", "cached_tokens")
GONE_S = 5.0
"""A process that was silent for longer is gone, or its growth since then is not that of one look."""
STALE_S = 60.0
"""Requests at a process that was silent for longer ask for no replicas: it may be gone, with its node's daemon."""
LATE = 3.0
"""In a large fleet nodes report more seldom; a process is silent only after this many reports that did not come."""
MS_PER_S = 1e3


@dataclass(slots=True)
class TallyOfModel:
    """What happened at one model since the last look, and its requests now."""

    grown: dict[str, float] = field(default_factory=dict)  # one of GROWING → by how much
    running: int = 0
    waiting: int = 0
    # priority class → histograms: ``ttft`` of requests that ended, and ``itl`` of the tokens that passed
    classes: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    # priority class → the newest responses, as ``gateway.records.newest_answers`` has them; None: no gateway has any
    answers: dict[str, list[Sequence[Any]]] | None = None

    def lengths(self) -> tuple[tuple[int, int], ...]:
        """Return the tokens of some responses, drawn evenly: of the prompt that was computed, and of the output."""
        known = [(int(one[0]), int(one[1])) for answers in (self.answers or {}).values() for one in answers]
        return some_lengths(known)

    def latencies(
        self, ttft_bounds_s: Sequence[float], itl_bounds_s: Sequence[float], target: ScalingTarget
    ) -> tuple[Latency, ...]:
        """Return the quantiles of each class in which requests ended, and how many were late by the target."""
        bounds = {"ttft": ttft_bounds_s, "itl": itl_bounds_s}
        found = []
        for name, histograms in sorted(self.classes.items()):
            quantiles = {kind: quantiles_of(counts, bounds[kind]) for kind, counts in histograms.items()}
            ended = int(sum(histograms["ttft"][:-1]))
            if ended or any(quantiles.values()):
                latency = Latency(
                    priority=int(name),
                    ended=ended,
                    ttft_ms=quantiles["ttft"],
                    itl_ms=quantiles["itl"],
                    itl_mean_ms=_mean_ms(histograms["itl"]),
                    late=_late(histograms["ttft"], ttft_bounds_s, target, int(name)),
                )
                known = None if self.answers is None else self.answers.get(name, ())
                found.append(latency if known is None else _by_answers(latency, known, target))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Heard:
    """The last report of one process."""

    at_s: float
    counts: Mapping[str, Counts]  # by model


class Tally:
    """The counters of all gateway processes, as each reported them last."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, _Heard]] = {}  # node → process → its report
        self._since: dict[str, TallyOfModel] = {}
        self._gone_s = GONE_S

    def hear(self, node_id: str, processes: Mapping[str, Mapping[str, Counts]], now_s: float) -> None:
        """Take in the counters of a node's gateway processes, which grow as long as each process lives.

        The first report of a process only says where it begins. A process without a report keeps its last one for a
        while.

        processes: process → model → its counters; now_s: monotonic
        """
        before = self._last.get(node_id, {})
        silent = {pid: old for pid, old in before.items() if pid not in processes and now_s - old.at_s <= self._gone_s}
        self._last[node_id] = silent | {pid: _Heard(now_s, counts) for pid, counts in processes.items()}
        for pid, counts in processes.items():
            old = before.get(pid)
            if old is not None and now_s - old.at_s <= self._gone_s:
                self._add(old.counts, counts)

    def keep(self, nodes: Iterable[str], now_s: float, every_s: float) -> None:
        """Forget the gateways of other nodes, and what was reported long ago.

        now_s: monotonic; every_s: between two reports of a node
        """
        self._gone_s = max(GONE_S, LATE * every_s)
        kept, stale_s = set(nodes), max(STALE_S, self._gone_s)
        self._last = {
            node: {pid: heard for pid, heard in processes.items() if now_s - heard.at_s <= stale_s}
            for node, processes in self._last.items()
            if node in kept
        }

    def take(self, model: str) -> TallyOfModel:
        """Return what happened at a model since the last call."""
        tally = self._since.pop(model, None) or TallyOfModel()
        for heard in (heard for processes in self._last.values() for heard in processes.values()):
            now = heard.counts.get(model, {})
            waiting = now.get("waiting", 0) + now.get("parked", 0)
            tally.waiting += waiting
            tally.running += max(0, now.get("in_flight", 0) - waiting)
        return tally

    def _add(self, before: Mapping[str, Counts], now: Mapping[str, Counts]) -> None:
        for model, counts in now.items():
            old = before.get(model, {})
            if counts.get("ended", 0) >= old.get("ended", 0):  # else another process has the same number
                self._add_model(self._since.setdefault(model, TallyOfModel()), old, counts)

    def _add_model(self, tally: TallyOfModel, before: Counts, now: Counts) -> None:
        for name in GROWING:
            grown = max(0, now.get(name, 0) - before.get(name, 0))
            tally.grown[name] = tally.grown.get(name, 0) + grown
        for name, histograms in now.get("classes", {}).items():
            old = before.get("classes", {}).get(name, {})
            sums = tally.classes.setdefault(name, {})
            for kind, counts in histograms.items():
                grown_by = _difference(counts, old.get(kind))
                sums[kind] = [a + b for a, b in zip(sums.get(kind, [0.0] * len(counts)), grown_by, strict=True)]
        self._add_answers(tally, before.get("answers", {}), now.get("answers"))

    def _add_answers(self, tally: TallyOfModel, before: Counts, now: Counts | None) -> None:
        if now is None:
            return
        tally.answers = {} if tally.answers is None else tally.answers
        for name, classes in now.items():
            for priority, newest in classes.items():
                old = before.get(name, {}).get(priority, {})
                grown = max(0, newest["number"] - old.get("number", 0))
                known = newest["newest"]
                tally.answers.setdefault(priority, []).extend(known[max(0, len(known) - grown) :])


def _objective(target: ScalingTarget, priority: int) -> Objective | None:
    return target.objective(priority) if isinstance(target, SloTarget) else None


def _by_answers(latency: Latency, answers: Sequence[Sequence[Any]], target: ScalingTarget) -> Latency:
    """Return latencies in which responses that are known one by one stand for all. Streams only say how they were."""
    streams = [(ttft_s * MS_PER_S, itl_s * MS_PER_S) for _, _, ttft_s, itl_s in answers if itl_s is not None]
    objective = _objective(target, latency.priority)
    late = None if objective is None else sum(objective.missed_by(*one) for one in streams)
    itl_ms = quantiles_among([itl_ms for _, itl_ms in streams])
    return replace(latency, itl_ms=itl_ms, itl_mean_ms=None, late=late, judged=len(streams))


def _late(ttft: Sequence[float], bounds: Sequence[float], target: ScalingTarget, priority: int) -> int | None:
    """Return how many first tokens came late; None where the class has no limit for them, or one for other tokens too.

    This is for older gateways, which count each time between two tokens, and not means of responses: where those have a
    limit too, the late first tokens alone would say that all is well.
    """
    objective = _objective(target, priority)
    if objective is None or objective.ttft_ms is None or objective.itl_ms is not None:
        return None
    return round(_above(ttft, bounds, objective.ttft_ms / MS_PER_S))


def _above(counts: Sequence[float], bounds: Sequence[float], limit: float) -> float:
    """Return how many of the counted values are above a limit; inside a bucket they are spread evenly."""
    above, lower = counts[len(bounds)], 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if upper > limit:
            above += count * (upper - max(lower, limit)) / (upper - lower)
        lower = upper
    return above


def _mean_ms(counts: Sequence[float]) -> float | None:
    total = sum(counts[:-1])
    return counts[-1] / total * MS_PER_S if total else None


def quantiles_of(counts: Sequence[float], bounds: Sequence[float]) -> Quantiles | None:
    """Return the quantiles of a histogram in milliseconds; None where it counted nothing.

    counts: of each bucket, of what is above the last bound, and the sum of all values
    bounds: upper bounds of the buckets, in seconds
    """
    total = sum(counts[:-1])
    if not total:
        return None
    values = (_quantile(counts, bounds, part * total) * MS_PER_S for part in (0.5, 0.9, 0.95, 0.99))
    p50, p90, p95, p99 = values
    return Quantiles(p50=p50, p90=p90, p95=p95, p99=p99)


def _quantile(counts: Sequence[float], bounds: Sequence[float], rank: float) -> float:
    """Return the value below which ``rank`` of the counted ones lie; inside a bucket they are spread evenly."""
    below, lower = 0.0, 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below, lower = below + count, upper
    return lower


def _difference(now: Sequence[float], before: Sequence[float] | None) -> list[float]:
    if before is None or len(before) != len(now):
        return list(now)
    return [max(0.0, a - b) for a, b in zip(now, before, strict=True)]
