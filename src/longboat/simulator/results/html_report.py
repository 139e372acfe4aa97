"""The report of a simulation: one HTML file with curves, which needs no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from longboat.simulator.results.curves import Curve, bars, line_chart
from longboat.simulator.results.result import Result, quantiles

__all__ = ("html_report",)

_POINTS = 200
_BUCKETS = 60
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c1c1c; --quiet: #5f5f5f; --grid: #ddd }
@media (prefers-color-scheme: dark) { :root { --page: #16181d; --text: #ececec; --quiet: #a8a8a8; --grid: #3a3d44 } }
body { background: var(--page); color: var(--text); font: 14px/1.5 sans-serif; margin: 2rem auto; max-width: 960px }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .2rem .7rem; text-align: right }
th:first-child, td:first-child { text-align: left } th { border-bottom: 1px solid var(--grid) }
svg { display: block; margin: .5rem 0 2rem; max-width: 100% } text { fill: var(--text); font: 12px sans-serif }
.quiet { fill: var(--quiet) } .grid { stroke: var(--grid) } .curve { fill: none; stroke-width: 2 }
"""
_HEAD = ("policy", "requests", "TTFT ms mean", "p50", "p99", "ITL ms mean", "p99", "cached", "queue ms p99", "refused")


def html_report(title: str, results: Sequence[Result]) -> str:
    """Return the file. results: of the same load, one for each policy"""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Longboat: simulation</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Simulation</h1><p>{escape(title)}</p>",
        *_table(results),
        "<h2>Time to first token: the part of the requests that had theirs by then</h2>",
        line_chart([_distribution(one) for one in results], "milliseconds (logarithmic)", "part", logarithmic=True),
        "<h2>Time to first token over time (mean of each interval)</h2>",
        line_chart([_over_time(one) for one in results], "seconds since the trace began", "ms"),
        "<h2>Time between tokens: the part of the tokens that came within</h2>",
        line_chart([_gaps(one) for one in results], "milliseconds (logarithmic)", "part", logarithmic=True),
        *(part for one in results for part in _replicas(one)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _table(results: Sequence[Result]) -> Iterator[str]:
    yield "<table><tr>" + "".join(f"<th>{name}</th>" for name in _HEAD) + "</tr>"
    for one in results:
        p50_s, p99_s = quantiles(one.ttft_s, (0.5, 0.99))
        cells = (
            escape(one.policy),
            str(one.requests),
            *(f"{seconds * 1e3:.0f}" for seconds in (one.mean_ttft_s, p50_s, p99_s)),
            *(f"{seconds * 1e3:.1f}" for seconds in (one.itl_s.mean, one.itl_s.quantile(0.99))),
            f"{100 * one.cached_share:.1f} %",
            f"{one.queue_s.quantile(0.99) * 1e3:.0f}",
            str(one.rejected + one.too_long),
        )
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def _distribution(result: Result) -> Curve:
    ordered = sorted(result.ttft_s)
    step = max(1, len(ordered) // _POINTS)
    places = sorted({*range(0, len(ordered), step), len(ordered) - 1}) if ordered else []
    return Curve(result.policy, [(ordered[at] * 1e3, (at + 1) / len(ordered)) for at in places])


def _gaps(result: Result) -> Curve:
    return Curve(result.policy, [(value * 1e3, part) for value, part in result.itl_s.points(_POINTS)])


def _over_time(result: Result) -> Curve:
    width_s = (result.span_s or 1.0) / _BUCKETS
    sums, counts = [0.0] * (_BUCKETS + 1), [0] * (_BUCKETS + 1)
    for arrived_s, ttft_s in zip(result.arrived_s, result.ttft_s, strict=True):
        bucket = min(_BUCKETS, int(arrived_s / width_s))
        sums[bucket] += ttft_s
        counts[bucket] += 1
    points = [((at + 0.5) * width_s, sums[at] / counts[at] * 1e3) for at in range(_BUCKETS + 1) if counts[at]]
    return Curve(result.policy, points)


def _replicas(result: Result) -> Iterator[str]:
    span_s = result.span_s or 1.0
    yield f"<h2>Replicas under {escape(result.policy)}</h2>"
    kinds: tuple[tuple[str, Callable[[int], float]], ...] = (
        ("part of the time in which it computed", lambda at: result.replicas[at].busy_s / span_s),
        ("part of its prompts' tokens that it had in the cache", lambda at: _cached(result, at)),
    )
    for name, value in kinds:
        yield bars(name, [min(1.0, max(0.0, value(at))) for at in range(len(result.replicas))])


def _cached(result: Result, at: int) -> float:
    one = result.replicas[at]
    share = one.cached_tokens / one.prompt_tokens if one.prompt_tokens else 0.0
    return 0.0 if math.isnan(share) else share
