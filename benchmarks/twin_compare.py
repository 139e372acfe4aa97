"""Engines and the twin beside each other for the same requests: quantiles with ranges, and single requests."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twin_stand import Seen

from longboat.routing.policies.registry import policy_of
from longboat.simulator.fleet.fleet import Fleet
from longboat.simulator.fleet.simulation import simulate
from longboat.simulator.results.result import Result, quantiles
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("PARTS", "beside", "show", "show_quantiles")

PARTS = (0.5, 0.99)
TWIN_SEEDS = 15  # of jitter: the p99 of a hundred requests is one of them
SAMPLES = 1000  # of the measured requests, drawn again, for the range of their quantiles


@dataclass(frozen=True, kw_only=True)
class OneRequest:
    """One request, as a client saw it and as the twin has it."""

    at_s: float  # since the first one
    prompt_tokens: int
    others: int  # requests under way when it came, as measured
    measured_ms: float  # its TTFT
    twin_ms: float  # the middle one of all seeds


def beside(
    fleet: Fleet, requests: Sequence[TraceRequest], seen: Sequence[Seen], seed: int, policy: str = "least_requests"
) -> dict[str, Any]:
    """Simulate requests at the times at which the client sent them, and compare.

    The twin's quantiles are the middle ones of several seeds of jitter. The measured ones have the range in which 95 %
    of such runs would be, by drawing from this one again.
    """
    first_s = min(one.began_s for one in seen)
    pairs = sorted(zip(requests, seen, strict=True), key=lambda pair: pair[1].began_s)
    for request, one in pairs:
        request.at_s = one.began_s - first_s
    sent = [request for request, _ in pairs]
    runs = [_simulated(fleet, sent, seed + at, policy) for at in range(TWIN_SEEDS)]
    measured = {"ttft_ms": [[1e3 * one.ttft_s] for _, one in pairs], "itl_ms": [_ms(one.gaps_s) for _, one in pairs]}
    twin = {
        "ttft_ms": [_ms(quantiles(run.ttft_s, PARTS)) for run in runs],
        "itl_ms": [[1e3 * run.itl_s.quantile(part) for part in PARTS] for run in runs],
    }
    rows = {name: _row(measured[name], twin[name]) for name in measured}
    means = {
        "measured": 1e3 * statistics.fmean(one.ttft_s for one in seen),
        "twin": 1e3 * statistics.median(run.mean_ttft_s for run in runs),
    }
    return {
        "requests": len(pairs),
        "seconds": pairs[-1][1].began_s - first_s,
        "ttft_mean_ms": means,
        "twin_cached_share": statistics.median(run.cached_share for run in runs),
        **rows,
        "each": _each(pairs, runs),
    }


def _simulated(fleet: Fleet, requests: Sequence[TraceRequest], seed: int, policy: str) -> Result:
    return simulate(fleet, iter(requests), lambda: policy_of(policy), seed=seed)


def _row(measured: Sequence[Sequence[float]], twin: Sequence[Sequence[float]]) -> dict[str, Any]:
    values = quantiles([value for one in measured for value in one], PARTS)
    middle = [statistics.median(column) for column in zip(*twin, strict=True)]
    return {
        "measured": values,
        "measured_range": _ranges(measured),
        "twin": middle,
        "twin_range": [[min(column), max(column)] for column in zip(*twin, strict=True)],
        "twin/measured": [one / max(1e-9, value) for one, value in zip(middle, values, strict=True)],
    }


def _ranges(measured: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return for each part the range that holds 95 % of the quantiles of runs that are drawn from this one."""
    draw = random.Random(0)
    drawn = [
        quantiles([value for one in draw.choices(measured, k=len(measured)) for value in one], PARTS)
        for _ in range(SAMPLES)
    ]
    return [quantiles(column, (0.025, 0.975)) for column in zip(*drawn, strict=True)]


def _each(pairs: Sequence[tuple[TraceRequest, Seen]], runs: Sequence[Result]) -> list[dict[str, float]]:
    """Return every request; the twin knows each by the time at which it came."""
    by_time = [dict(zip(run.arrived_s, run.ttft_s, strict=True)) for run in runs]
    found = []
    for request, one in pairs:
        under_way = sum(other.began_s < one.began_s < _ended_s(other) for _, other in pairs)
        twin_s = statistics.median([times[request.at_s] for times in by_time if request.at_s in times])
        row = OneRequest(
            at_s=request.at_s,
            prompt_tokens=request.prompt_tokens,
            others=under_way,
            measured_ms=1e3 * one.ttft_s,
            twin_ms=1e3 * twin_s,
        )
        found.append(asdict(row))
    return found


def _ended_s(seen: Seen) -> float:
    return seen.began_s + seen.ttft_s + sum(seen.gaps_s)


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * value for value in seconds]


def show(row: dict[str, Any], worst: int) -> None:
    """Print the comparison at a rate, and the requests that waited longest for their first tokens."""
    print(f"{row['rate']:g} conversations a second, {row['requests']} requests in {row['seconds']:.0f} s")
    show_quantiles(row, worst)


def show_quantiles(row: dict[str, Any], worst: int) -> None:
    """Print the quantiles beside each other, and the requests that waited longest for their first tokens."""
    for name in ("ttft_ms", "itl_ms"):
        for at, part in enumerate(PARTS):
            one = {key: values[at] for key, values in row[name].items()}
            (low, high), (least, most) = one["measured_range"], one["twin_range"]
            print(
                f"  {name} p{100 * part:g}: measured {one['measured']:.1f} ({low:.1f} to {high:.1f}), "
                f"twin {one['twin']:.1f} ({least:.1f} to {most:.1f}), ratio {one['twin/measured']:.3f}"
            )
    for one in sorted(row["each"], key=lambda one: -one["measured_ms"])[:worst]:
        print(
            f"  at {one['at_s']:.1f} s: {one['prompt_tokens']} tokens beside {one['others']} others, "
            f"measured {one['measured_ms']:.1f} ms, twin {one['twin_ms']:.1f} ms"
        )
