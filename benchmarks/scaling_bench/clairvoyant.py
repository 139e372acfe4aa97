"""What replicas would cost someone who knows every request in advance.

The work of each request is known in replica seconds. A plan has, for each second, the replicas that the work of the
next ``window`` seconds takes times a factor; it starts each replica one cold start early, and keeps one where stopping
and starting it would cost more. For each of several windows the smallest factor is searched with which the twin keeps
the objective for 99 % of the requests, and the cheapest of these plans counts. It is a minimum over these plans: a
cleverer one may cost a little less. A plan is played no further once too many requests were late, and not at all where
it costs more than the best one so far; neither changes what is found.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass
from functools import partial

from longboat.core.scaling import ModelObservation, ScaledModel
from longboat.simulator.scaled.scaled_fleet import ScaledResult
from longboat.simulator.traces.trace_request import TraceRequest
from scaling_bench.loads import Load
from scaling_bench.stand import MOST, Planned, run_rule

__all__ = ("Minimum", "clairvoyant", "knowing")

WINDOWS_S = (30, 150)
KEPT = 0.99
ROUNDS = 5


@dataclass(frozen=True)
class Minimum:
    """The cheapest plan that was found."""

    replica_s: float  # with the cold starts
    starts: int
    counts: list[int]  # replicas in each second
    kept_share: float


def clairvoyant(load: Load, cold_start_s: float, *, windows: tuple[int, ...] = WINDOWS_S) -> Minimum:
    """Return the cheapest plan of all windows."""
    work = _work(load)
    best: Minimum | None = None
    for window in windows:
        best = _cheapest(load, work, window, cold_start_s, best)
    if best is None:
        message = f"{load.name}: no plan keeps the objective for {KEPT:.0%} of the requests with {MOST} replicas"
        raise ValueError(message)
    return best


KNOWING_FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.45, 1.6, 1.8, 2.1, 2.5)
KNOWING_HOLDS_S = (30, 60, 240, 300)


def knowing(load: Load, cold_start_s: float, initial: int, most_s: float) -> Minimum:
    """Return the run with the fewest late requests of a rule that measures the load exactly, and knows nothing ahead.

    It knows the work of the requests that came in the last 30 s, starts replicas for it times a factor at once, which
    serve one cold start later, and keeps each for a while. Factor and while are the best ones for the load, which are
    known only afterwards. It shows what a rule can reach that only reacts. most_s: replica seconds that it may take,
    where it can; initial: replicas at the beginning
    """
    window = WINDOWS_S[0]
    ahead, delay, found = _ahead(_work(load), window), round(cold_start_s) + window, list[Minimum]()
    for hold_s in (one for one in KNOWING_HOLDS_S if one >= min(cold_start_s, KNOWING_HOLDS_S[-1])):
        for factor in KNOWING_FACTORS:
            wanted = _highest([max(1, min(MOST, math.ceil(factor * one))) for one in ahead], hold_s)
            counts = [*[max(initial, wanted[0])] * delay, *wanted][: len(wanted)]
            starts = sum(max(0, after - before) for before, after in itertools.pairwise(wanted))
            if found and sum(counts) + starts * cold_start_s > most_s:
                break
            result = run_rule(load, partial(_planned, counts, load.begin_s), 0.0, counts[0])
            found.append(Minimum(result.replica_s + starts * cold_start_s, starts, counts, result.kept_share))
    fair = [one for one in found if one.replica_s <= most_s]
    return max(fair or found, key=lambda one: one.kept_share)


def _planned(counts: list[int], begin_s: float, model: ScaledModel) -> Planned:
    return Planned(counts, begin_s)


def _highest(counts: list[int], span: int) -> list[int]:
    """Return the highest count of the last seconds, at each second."""
    found, kept = [], deque[int]()
    for at, count in enumerate(counts):
        while kept and counts[kept[-1]] <= count:
            kept.pop()
        kept.append(at)
        if kept[0] < at - span:
            kept.popleft()
        found.append(counts[kept[0]])
    return found


def _work(load: Load) -> list[float]:
    """Return the replica seconds of the requests that come in each second."""
    work = [0.0] * (math.ceil(load.requests[-1].at_s) + 1)
    batch = _batch(load)
    for one in load.requests:
        work[int(one.at_s)] += _cost_s(one, load, batch)
    return work


def _batch(load: Load) -> float:
    """Return the sequences with which a step takes the time that the objective allows, or all that are taken."""
    lengths = sum(one.prompt_tokens + one.output_tokens / 2 for one in load.requests) / len(load.requests)
    each_s = load.time.sequence_s + load.time.kv_token_s * lengths
    allowed_s = (load.objective.itl_ms or 1e9) / 1e3 * 0.6
    most = min(load.limits.max_num_seqs, load.limits.kv_blocks * load.limits.block_tokens / lengths)
    return max(1.0, min(most, (allowed_s - load.time.base_s) / each_s))


def _cost_s(one: TraceRequest, load: Load, batch: float) -> float:
    time, tokens = load.time, one.prompt_tokens
    step_s = time.base_s / batch + time.sequence_s + time.kv_token_s * (tokens + one.output_tokens / 2)
    return time.prompt_token_s * tokens + time.prompt_pair_s * tokens * tokens / 2 + one.output_tokens * step_s


def _cheapest(load: Load, work: list[float], window: int, cold_s: float, best: Minimum | None) -> Minimum | None:
    """Return the cheapest plan of one window, or the best one so far."""
    ahead = _ahead(work, window)
    low, high = 0.5, 2.5
    for _ in range(ROUNDS):
        factor = (low * high) ** 0.5
        counts, starts = _bridged([max(1, min(MOST, math.ceil(factor * one))) for one in ahead], cold_s)
        if best is not None and sum(counts) + starts * cold_s >= best.replica_s:
            high = factor
        elif (result := _kept(load, counts)) is None:
            low = factor
        else:
            high = factor
            cost = result.replica_s + starts * cold_s
            if best is None or cost < best.replica_s:
                best = Minimum(cost, starts, counts, result.kept_share)
    return best


class _TooManyLateError(Exception):
    """Ends a run whose plan does not keep the objective."""


class _Strict(Planned):
    """A plan that gives up as soon as more requests were late than may be."""

    allowed = 0.0

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Count the late requests."""
        self.allowed -= sum(one.late or 0 for one in seen.latencies)
        if self.allowed < 0.0:
            raise _TooManyLateError


def _kept(load: Load, counts: list[int]) -> ScaledResult | None:
    """Return what came of a plan, or nothing where it does not keep the objective."""
    plan = _Strict(counts, load.begin_s)
    plan.allowed = (1.0 - KEPT) * len(load.requests)
    try:
        result = run_rule(load, lambda model: plan, 0.0, counts[0])
    except _TooManyLateError:
        return None
    return result if result.kept_share >= KEPT else None


def _ahead(work: list[float], window: int) -> list[float]:
    """Return the highest mean work of a window that holds each second."""
    total, sums = 0.0, [0.0]
    for one in work:
        total += one
        sums.append(total)
    means = [(sums[min(len(work), at + window)] - sums[at]) / window for at in range(len(work))]
    half = window // 2
    return [max(means[max(0, at - half)], means[at]) for at in range(len(work))]


def _bridged(counts: list[int], cold_s: float) -> tuple[list[int], int]:
    """Return the counts with gaps filled that are shorter than a cold start, and the starts that are left."""
    filled, starts = list(counts), 0
    for level in range(1, max(counts) + 1):
        last = -math.inf if counts[0] < level else 0.0
        at = 0
        while at < len(counts):
            if counts[at] >= level:
                gap = at - last - 1
                if 0 < gap <= cold_s:
                    for between in range(int(last) + 1, at):
                        filled[between] = max(filled[between], level)
                elif gap > 0:
                    starts += 1
                last = float(at)
            at += 1
    return filled, starts
