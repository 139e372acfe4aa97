"""How many machines of each kind, for the eye."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.outputs.size_row import Row
from longboat.cli.plan.plan_tables import console
from longboat.cli.plan.planning import Planner
from longboat.cli.shared.console import simple_table

__all__ = ("print_rows",)


def print_rows(shape: ModelShape, planner: Planner, rows: Sequence[Row]) -> None:
    """Print a row for each kind: those that serve the load first, the cheapest of them at the top."""
    out, demand = console(), planner.demand
    load = f"{planner.rate:g} requests/s" if planner.rate else f"{demand.users} requests at once"
    out.print(Text(f"{shape.name} for {load} ({demand.prompt_tokens} + {demand.output_tokens} tokens)", style="bold"))
    if all(row.problem for row in rows):
        out.print(Text("none of these kinds serves the load within the limits", style="bold red"))
    names = ("MACHINE", "COUNT>", "PLAN", "WEIGHTS", "TOKENS/S>", "TTFT ms>", "ITL ms>", "USD>", "USD/HOUR>", "KEPT")
    table = simple_table(*names)
    for row in rows:
        table.add_row(row.title, *_cells(row))
    out.print(table)
    out.print(Text("USD is the price of the accelerators, USD/HOUR their rent, as far as the catalog knows them"))


def _cells(row: Row) -> tuple[str, ...]:
    kept = f"no: {row.problem}" if row.problem else "yes"
    if row.sized is None or row.sized.served is None:
        return ("", "", "", "", "", "", "", "", kept)
    plan = row.sized.served.plan
    return (
        str(row.sized.cluster.num_nodes),
        plan.title,
        plan.format,
        f"{plan.tokens_per_s:.0f}",
        f"{plan.ttft_s * 1e3:.0f}",
        f"{plan.itl_s * 1e3:.1f}",
        _money(row.purchase_usd, "0f"),
        _money(row.rent_usd_per_hour, "2f"),
        kept,
    )


def _money(usd: float | None, digits: str) -> str:
    return "-" if usd is None else f"{usd:.{digits}}"
