"""``longboat fit``: which models of the catalog fit on these machines, and how well."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from longboat.catalog.model_entry import shape_of_entry
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import Planner, planner_for
from longboat.core.errors import UserInputError

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


def run_fit(request: PlanRequest, *, as_json: bool, all_models: bool) -> None:
    """Print a row for each model that fits; with all_models also for those that do not."""
    planner = planner_for(request)
    planner.engine  # noqa: B018 - refuses machines that no engine runs on, once and not for each model
    rows = [row for row in fitting_rows(planner) if row.fits or all_models]
    if as_json:
        print(json.dumps({"cluster": planner.cluster.title, "models": [asdict(row) for row in rows]}, indent=2))
        return
    from longboat.cli.plan.plan_tables import console, simple_table

    table = simple_table("MODEL", "PARAMS>", "WEIGHTS", "PLAN", "TOKENS/S>", "TTFT ms>", "ITL ms>", "LONGEST>", "HELD>")
    for row in rows:
        figures = (f"{row.tokens_per_s:.0f}", f"{row.ttft_s * 1e3:.0f}", f"{row.itl_s * 1e3:.1f}")
        last = (str(row.max_context_tokens), str(row.max_sequences))
        cells = (*figures, *last) if row.fits else ("-",) * 5
        table.add_row(row.model, f"{row.params / 1e9:.1f}B", row.quantization or "no", row.plan, *cells)
    console().print(table)


def fitting_rows(planner: Planner) -> list[Row]:
    """Return models in the order of their size, the largest that fit first."""
    rows = [_row(planner, name) for name in planner.library.models]
    return sorted(rows, key=lambda row: (not row.fits, -row.params, row.model))


def _row(planner: Planner, name: str) -> Row:
    shape = shape_of_entry(planner.library.models[name])
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
        max_context_tokens=best.groups[0].fit.max_context_tokens,
        max_sequences=best.max_sequences,
    )
