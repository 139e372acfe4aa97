"""The table of a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from longboat.cli.shared.console import make_console, simple_table
from longboat.simulator.results.result import Result, quantiles

__all__ = ("print_results",)

_WIDTH_WITHOUT_TERMINAL = 160
_COLUMNS = (
    *("POLICY", "REQUESTS>", "TTFT ms MEAN>", "P50>", "P99>", "ITL ms MEAN>", "P50>", "P99>"),
    *("CACHED>", "QUEUE ms MEAN>", "P99>", "GOOD/s>", "REFUSED>"),
)


def print_results(title: str, results: Sequence[Result]) -> None:
    """Print a row for each policy."""
    console = make_console(width=_WIDTH_WITHOUT_TERMINAL)
    console.print(title, highlight=False, soft_wrap=True)
    table = simple_table(*_COLUMNS)
    for result in results:
        table.add_row(*_cells(result))
    console.print(table)


def _cells(result: Result) -> list[str]:
    p50_s, p99_s = quantiles(result.ttft_s, (0.5, 0.99))
    ttft = (result.mean_ttft_s, p50_s, p99_s)
    itl = (result.itl_s.mean, result.itl_s.quantile(0.5), result.itl_s.quantile(0.99))
    queue = (result.queue_s.mean, result.queue_s.quantile(0.99))
    return [
        result.policy,
        str(result.requests),
        *(f"{seconds * 1e3:.0f}" for seconds in ttft),
        *(f"{seconds * 1e3:.1f}" for seconds in itl),
        f"{100 * result.cached_share:.1f} %",
        *(f"{seconds * 1e3:.0f}" for seconds in queue),
        f"{result.good / (result.span_s or 1.0):.2f}",
        str(result.rejected + result.too_long),
    ]
