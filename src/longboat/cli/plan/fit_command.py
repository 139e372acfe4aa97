"""``longboat fit``: which models of the catalog fit on these machines, and how well."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from longboat.catalog.model_entry import shape_of_entry
from longboat.cli.plan.cost_command import Money, assumptions_of
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import Planner, planner_for
from longboat.core.errors import UserInputError
from longboat.planner.cost import Assumptions, cost_of

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 120
"""Columns of a screen from which on all figures are shown."""
__all__ = ("Row", "fitting_rows", "run_fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model of the catalog."""

    model: str
    params: float
    fits: bool
    quantization: str  # that fits; empty where none does
    plan: str  # the split; why it does not fit, where it does not
    tokens_per_s: float = 0.0
    itl_s: float = 0.0
    ttft_s: float = 0.0
    max_context_tokens: int = 0
    max_sequences: int = 0
    missed: str = ""  # limits of --slo that the best plan misses, in words
    source: str = ""  # of the weights as they are published, for the fleet file; empty where the plan needs others
    usd_per_million: float | None = None  # tokens of prompts and responses, as ``longboat cost`` counts them


def run_fit(request: PlanRequest, *, as_json: bool, all_models: bool) -> None:
    """Print a row for each model that fits and keeps the limits; with all_models also for those that do not."""
    planner = planner_for(request)
    planner.engine  # noqa: B018 - refuses machines that no engine runs on, once and not for each model
    rows = fitting_rows(planner)
    shown = rows if all_models else [row for row in rows if row.fits and not row.missed]
    if as_json:
        print(json.dumps({"cluster": planner.cluster.title, "models": [asdict(row) for row in shown]}, indent=2))
        return
    from longboat.cli.plan.plan_tables import console

    out = console()
    out.print(_table(shown, narrow=out.width < WIDE))
    if missing := sum(bool(row.missed) for row in rows) if not all_models else 0:
        out.print(f"{missing} more fit and miss --slo {request.slo}: --all shows them")


def _table(rows: list[Row], *, narrow: bool) -> Table:
    """Return one line a model; a narrow table has fewer columns, and cuts its last one."""
    from longboat.cli.shared.console import simple_table

    wide = [] if narrow else ["PARAMS>"], [] if narrow else ["LONGEST>", "HELD>"]
    table = simple_table("MODEL", *wide[0], "WEIGHTS", "TOKENS/S>", "TTFT ms>", "ITL ms>", *wide[1], "PLAN")
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for row in rows:
        figures = [f"{row.tokens_per_s:.0f}", f"{row.ttft_s * 1e3:.0f}", f"{row.itl_s * 1e3:.1f}"]
        figures += [] if narrow else [str(row.max_context_tokens), str(row.max_sequences)]
        cells = figures if row.fits else ["-"] * len(figures)
        plan = f"misses {row.missed}: {row.plan}" if row.missed else row.plan
        params = [] if narrow else [f"{row.params / 1e9:.1f}B"]
        table.add_row(row.model, *params, row.quantization or "no", *cells, plan)
    for column in table.columns[:-1]:
        column.min_width = max(len(str(text)) for text in (column.header, *column.cells))
    return table


def fitting_rows(planner: Planner) -> list[Row]:
    """Return models in the order of their size, the largest that fit first."""
    assumed = assumptions_of(Money(), planner.library)
    rows = [_row(planner, name, assumed) for name in planner.library.models]
    return sorted(rows, key=lambda row: (not row.fits, bool(row.missed), -row.params, row.model))


def _row(planner: Planner, name: str, assumed: Assumptions) -> Row:
    entry = planner.library.models[name]
    shape = shape_of_entry(entry)
    try:
        best = planner.brief(shape).plans[0]
    except UserInputError as error:
        what = error.message.partition(": ")[2] or error.message
        return Row(model=name, params=float(shape.num_params), fits=False, quantization="", plan=what)
    kept = best.groups[0].shape
    return Row(
        model=name,
        params=float(shape.num_params),
        fits=True,
        quantization=kept.quantization or kept.dtype,
        plan=best.title,
        tokens_per_s=best.tokens_per_s,
        itl_s=best.itl_s,
        ttft_s=best.ttft_s,
        max_context_tokens=best.groups[0].fit.request_tokens,
        max_sequences=best.max_sequences,
        missed=best.missed,
        source=f"hf:{entry.hub}" if kept.quantization == shape.quantization else "",
        usd_per_million=cost_of(best, planner.cluster, planner.demand, assumed).usd_per_million,
    )
