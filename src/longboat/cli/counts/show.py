"""Shows how many replicas models are to have, who decided that, and why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from longboat.cluster.protocol.messages import FleetReport, ModelCount

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("count_lines", "decision_table")

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


def count_lines(report: FleetReport, *, all_of_them: bool) -> Iterator[str]:
    """Yield a line for each model whose number of replicas does not just stand in the file."""
    for model, count in report.counts.items():
        if all_of_them or count.by != "file" or count.problem:
            yield f"{model}: {_words(count, report.at_s)}"


def decision_table(report: FleetReport) -> Table:
    """Show the newest changes, with what they were decided from."""
    from longboat.cli.shared.console import simple_table

    table = simple_table("AT", "MODEL", "REPLICAS", "BY", "WHY", wraps=("WHY",))
    for decision in report.decisions:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision["at_s"]))
        change = f"{decision['before']} -> {decision['replicas']}"
        table.add_row(at, decision["model"], change, decision["by"], _reason(decision))
    return table


def _words(count: ModelCount, at_s: float) -> str:
    """``3 replicas wanted by root@head for 5 min (bounds 0 to 8): …``."""
    wanted = "paused" if count.paused else f"{count.wanted} replica{'s' if count.wanted != 1 else ''} wanted"
    bounds = f" (bounds {count.minimum} to {count.maximum})" if count.maximum > count.minimum else ""
    start = f"; a start takes {count.cold_start_s:.1f} s" if count.cold_start_s is not None else ""
    place = getattr(count, "placement", "")  # an older controller's report lacks it
    problem = f"; {count.problem}" if count.problem else ""
    problem += f"; newest replicas: {place}" if place else ""
    return f"{wanted} by {count.by} for {_duration(at_s - count.since_s)}{bounds}: {count.why}{start}{problem}"


def _reason(decision: Mapping[str, Any]) -> str:
    terms = ", ".join(f"{name} {value:g}" for name, value in decision["terms"].items())
    place = f"; {decision['placement']}" if decision.get("placement") else ""
    return f"{decision['reason']} ({terms}){place}" if terms else f"{decision['reason']}{place}"


def _duration(seconds: float) -> str:
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
