"""Tables of policies beside each other, and the cells that a peer wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean

from rich.console import Console
from rich.table import Table

from routing_bench.grid import Row
from routing_bench.stand import Figures

__all__ = ("lost", "markdown", "short_of_goal", "show")

OURS = "cost"
EQUAL = 0.01  # figures that differ by less than this part count as equal: other seeds differ by more
MEASURES: dict[str, Callable[[Figures], float]] = {
    "mean": lambda figures: figures.mean,
    "p50": lambda figures: figures.p50,
    "p99": lambda figures: figures.p99,
}
GOAL = 0.85  # our mean TTFT at 80 % load, in means of the best other policy


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table: TTFT in milliseconds with the interval over the seeds."""
    table = Table(
        "", "policy", "mean", "p50", "p99", "ITL", "cached", title="TTFT in ms: mean of the seeds, ± half range"
    )
    for cell, group in groupby(rows, key=lambda row: row.cell):
        name = cell
        for row in group:
            cells = [_interval([measure(each) for each in row.figures]) for measure in MEASURES.values()]
            itl, share = fmean(each.itl for each in row.figures), fmean(each.cached_share for each in row.figures)
            style = "bold" if row.policy == OURS else ""
            table.add_row(name, row.policy, *cells, f"{itl:.1f}", f"{share:.1%}", style=style)
            name = ""
        table.add_section()
    console.print(table)


def markdown(rows: Sequence[Row]) -> str:
    """Return a table for a page: our figures and the best other policy's in milliseconds, and the difference.

    The difference has half of its range over the seeds.
    """
    lines = ["| cell | mean | p50 | p99 | cached | most cached |", "| --- | --- | --- | --- | --- | --- |"]
    for cell, group in groupby(rows, key=lambda row: row.cell):
        by_policy = {row.policy: row for row in group}
        ours = by_policy.pop(OURS)
        cells = [_beside(ours, by_policy, measure) for measure in MEASURES]
        shares = {policy: fmean(each.cached_share for each in row.figures) for policy, row in by_policy.items()}
        most = max(shares, key=lambda policy: shares[policy])
        share = fmean(each.cached_share for each in ours.figures)
        lines.append(f"| {cell} | {' | '.join(cells)} | {share:.1%} | {shares[most]:.1%} `{most}` |")
    return "\n".join(lines) + "\n"


def _beside(ours: Row, others: dict[str, Row], measure: str) -> str:
    values = {policy: _mean(row, measure) for policy, row in others.items()}
    best = min(values, key=lambda policy: values[policy])
    pairs = zip(ours.figures, others[best].figures, strict=True)
    changes = [MEASURES[measure](one) / MEASURES[measure](other) - 1 for one, other in pairs]
    spread = f" ± {50 * (max(changes) - min(changes)):.0f}" if len(changes) > 1 else ""
    own = _mean(ours, measure)
    return f"**{own:.0f}**, {values[best]:.0f} `{best}` ({100 * own / values[best] - 100:+.0f}{spread} %)"


def lost(rows: Sequence[Row], measures: Sequence[str]) -> list[str]:
    """Return the cells in which a peer's figure is lower than ours."""
    found = []
    for cell, group in groupby(rows, key=lambda row: row.cell):
        by_policy = {row.policy: row for row in group}
        for measure in measures:
            values = {policy: _mean(row, measure) for policy, row in by_policy.items()}
            ours = values.pop(OURS)
            best = min(values, key=lambda policy: values[policy])
            if ours > values[best] * (1 + EQUAL):
                found.append(f"{cell}: {measure} {ours:.0f} ms, and {best} has {values[best]:.0f} ms")
    return found


def short_of_goal(rows: Sequence[Row]) -> list[str]:
    """Return the cells at 80 % load in which our mean TTFT is not 15 % below the best other."""
    found = []
    for cell, group in groupby(rows, key=lambda row: row.cell):
        values = {row.policy: _mean(row, "mean") for row in group}
        ours = values.pop(OURS)
        best = min(values, key=lambda policy: values[policy])
        if "80%" in cell and ours > GOAL * values[best]:
            found.append(
                f"{cell}: mean {ours:.0f} ms is {1 - ours / values[best]:.1%} below {best}'s {values[best]:.0f} ms"
            )
    return found


def _mean(row: Row, measure: str) -> float:
    return fmean(MEASURES[measure](each) for each in row.figures)


def _interval(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.0f}"
    return f"{fmean(values):.0f} ± {(max(values) - min(values)) / 2:.0f}"
