"""Plans, fits and costs for the eye."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from longboat.cli.shared.console import make_console, simple_table
from longboat.planner.machines.pools import system_notes
from longboat.planner.memory.fit import RankBytes
from longboat.planner.predict.number import Number
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.ranking import Plan
from longboat.planner.search.reasons import settings_of
from longboat.planner.search.search import SearchResult

if TYPE_CHECKING:
    from longboat.planner.cost import Cost

__all__ = ("console", "cost_table", "print_cost", "print_found")

WIDTH_WITHOUT_TERMINAL = 160
UNBOUNDED = 10_000
GIB = 1024**3
SHOWN_PLANS, SHOWN_REJECTED = 6, 8


def console() -> Console:
    """Return a console whose tables follow the terminal, and do not fold where there is none."""
    return make_console(width=WIDTH_WITHOUT_TERMINAL)


def print_found(
    found: SearchResult, base: SearchResult | None, *, notes: Sequence[str] = (), num_plans: int = SHOWN_PLANS
) -> None:
    """Print the best plan in full, the others in a row each, what was refused, and the difference to ``base``.

    What makes the figures doubtful stands first: a limit that is missed, and reasons for an estimate.
    """
    best, out = found.plans[0], console()
    out.print(Text(f"{best.groups[0].shape.name} on {found.cluster.title}", style="bold"))
    if best.missed:
        out.print(Text(f"no plan keeps the limit; the best misses it: {best.missed}", style="bold red"))
    for doubt in best.estimate:
        out.print(Text(f"estimate: {doubt}", style="bold yellow"))
    for note in notes:
        out.print(Text(note))
    for note in (*_stored(best), *system_notes(found.cluster)):
        out.print(Text(note, style="yellow"))
    out.print(_totals(found, best))
    for group in best.groups:
        out.print()
        out.print(Text(group.title, style="bold"))
        out.print(_figures(group))
        out.print(_memory(group.fit.ranks))
        out.print(Text(f"settings: {' '.join(settings_of(group))}", style="cyan"))
    out.print()
    for reason in best.reasons:
        if reason != best.changed_format:
            out.print(Text(f"· {reason}"))
    if len(found.plans) > 1:
        out.print()
        _print_reasons(out, _others(found.plans[:num_plans]))
    if found.rejected:
        out.print()
        _print_reasons(out, _rejected(found))
    if base is not None and base.plans:
        out.print()
        out.print(_difference(base, found))


def _stored(plan: Plan) -> Iterator[str]:
    shape = plan.groups[0].shape
    yield plan.changed_format or f"weights in {plan.format}, {shape.weight_bytes / GIB:.1f} GiB"


def _totals(found: SearchResult, plan: Plan) -> Text:
    demand = found.demand
    replicas = f"{plan.num_replicas} replica{'s' if plan.num_replicas > 1 else ''}"
    return Text(
        f"{replicas}, {plan.tokens_per_s:.0f} tokens/s in total for {demand.users} "
        f"user{'s' if demand.users > 1 else ''} ({demand.prompt_tokens} + {demand.output_tokens} tokens); "
        f"{plan.max_sequences} requests of {demand.context} tokens held at once"
    )


def _figures(group: Forecast) -> Table:
    table = simple_table("ONE REPLICA", "EXPECTED>", "8 OF 10 BETWEEN>", "FROM")
    prediction = group.prediction
    requests = "1 request" if group.users == 1 else f"{round(group.users, 1):.10g} requests"
    rows = (
        ("first token", prediction.ttft_s, 1e3, "ms"),
        ("between tokens", prediction.itl_s, 1e3, "ms"),
        ("one request", prediction.request_tokens_per_s, 1.0, "tokens/s"),
        (requests, prediction.total_tokens_per_s, 1.0, "tokens/s"),
    )
    for name, number, factor, unit in rows:
        table.add_row(name, f"{number.value * factor:.1f} {unit}", _interval(number, factor), number.provenance)
    fit = group.fit
    table.add_row("cache", f"{fit.num_kv_tokens} tokens", f"{fit.max_sequences} requests", "counted")
    table.add_row("longest request", f"{fit.request_tokens} tokens", "", "counted")
    return table


def _interval(number: Number, factor: float) -> str:
    return f"{number.low * factor:.1f} … {number.high * factor:.1f}"


def _memory(ranks: Sequence[RankBytes]) -> Table:
    """Return one row for each stage, stages that are alike together: ranks of a stage are alike."""
    table = simple_table("STAGE", "ACCELERATOR", "WEIGHTS>", "BUFFERS>", "CACHE>", "USED>", "BUDGET>", "OF CARD>")
    for stages, rank in _alike(ranks):
        sizes = (rank.weight_bytes, rank.overhead_bytes, rank.cache_bytes, rank.used_bytes, rank.budget_bytes)
        cells = [f"{size / GIB:.1f}" for size in (*sizes, rank.card.memory_bytes)]
        cells[-1] += " GiB"
        table.add_row(stages, rank.card.name, *cells)
    return table


def _alike(ranks: Iterable[RankBytes]) -> Iterator[tuple[str, RankBytes]]:
    runs: list[tuple[int, int, RankBytes]] = []
    for rank in ranks:
        if rank.tensor_rank:
            continue
        if runs and runs[-1][2].card == rank.card and runs[-1][2].used_bytes == rank.used_bytes:
            runs[-1] = (runs[-1][0], rank.stage, runs[-1][2])
        else:
            runs.append((rank.stage, rank.stage, rank))
    for first, last, rank in runs:
        yield (f"{first}" if first == last else f"{first}-{last}"), rank


def _print_reasons(out: Console, table: Table) -> None:
    """Print a table of names, figures and reasons; on a screen that is too narrow, names and reasons as lines below it.

    Numbers stand for the names then.
    """
    if out.measure(table, options=out.options.update(max_width=UNBOUNDED)).maximum <= out.width:
        out.print(table)
        return
    names, *figures, reasons = table.columns
    lines = [f"{name}: {reason}" for name, reason in zip(names.cells, reasons.cells, strict=True)]
    if not figures:
        out.print(Text(f"{names.header}", style="bold"))
    else:
        numbered = simple_table(str(names.header), *(f"{column.header}>" for column in figures))
        for number, *cells in zip(range(1, len(lines) + 1), *(column.cells for column in figures), strict=True):
            numbered.add_row(str(number), *cells)
        out.print(numbered)
    for number, line in enumerate(lines, 1):
        out.print(Text(f"{number}: {line}" if figures else f"· {line}"))


def _others(plans: Sequence[Plan]) -> Table:
    table = simple_table("PLAN", "WEIGHTS", "TOKENS/S>", "TTFT ms>", "ITL ms>", "HELD>", "WHY NOT")
    for index, plan in enumerate(plans):
        why = "the best" if not index else "; ".join(plan.reasons)
        cells = (f"{plan.tokens_per_s:.0f}", f"{plan.ttft_s * 1e3:.0f}", f"{plan.itl_s * 1e3:.1f}")
        table.add_row(plan.title, plan.format, *cells, str(plan.max_sequences), why)
    return table


def _rejected(found: SearchResult) -> Table:
    table = simple_table("REFUSED", "WHY")
    for one in found.rejected[:SHOWN_REJECTED]:
        table.add_row(one.what, f"{one.why}{f' ({one.hint})' if one.hint else ''}")
    if len(found.rejected) > SHOWN_REJECTED:
        table.add_row(f"… and {len(found.rejected) - SHOWN_REJECTED} more", "--json lists all")
    return table


def _difference(base: SearchResult, found: SearchResult) -> Table:
    old, new = base.plans[0], found.plans[0]
    table = simple_table("AGAINST THE BASE", "BASE>", "CHANGED>", "DIFFERENCE>")
    table.add_row("machines", base.cluster.title, found.cluster.title, "")
    table.add_row("plan", old.title, new.title, "")
    rows = (
        ("tokens/s in total", old.tokens_per_s, new.tokens_per_s, 1.0),
        ("first token, ms", old.ttft_s, new.ttft_s, 1e3),
        ("between tokens, ms", old.itl_s, new.itl_s, 1e3),
        ("requests held", float(old.max_sequences), float(new.max_sequences), 1.0),
    )
    for name, before, after, factor in rows:
        change = f"{after / before - 1:+.0%}" if before else "-"
        table.add_row(name, f"{before * factor:.4g}", f"{after * factor:.4g}", change)
    return table


def print_cost(found: SearchResult, cost: Cost, notes: Sequence[str]) -> None:
    """Print what the best plan costs. notes: about the load that it serves."""
    out, plan = console(), found.plans[0]
    out.print(Text(f"{plan.groups[0].shape.name}: {plan.title}", style="bold"))
    out.print(Text(f"{found.demand.users} users, {found.demand.prompt_tokens} + {found.demand.output_tokens} tokens"))
    for note in notes:
        out.print(Text(f"note: {note}"), soft_wrap=True)
    out.print(cost_table(cost))
    if cost.without_price:
        names = ", ".join(cost.without_price)
        out.print(Text(f"no price is known for {names}: give --price, or a catalog file of your own", style="yellow"))
    out.print()
    table = simple_table("USD/kWh>", "UTILIZATION>", "USD PER MILLION TOKENS>")
    for one in cost.what_if:
        table.add_row(f"{one.usd_per_kwh:.3f}", f"{one.utilization:.1%}", f"{one.usd_per_million:.3f}")
    out.print(table)


def cost_table(cost: Cost) -> Table:
    """Return figures, one a row."""
    table = simple_table("COST", "")
    for name, text in _cost_rows(cost):
        table.add_row(name, text)
    return table


def _cost_rows(cost: Cost) -> Iterator[tuple[str, str]]:
    yield "power under load, idle", f"{cost.power.busy_w:.0f} W, {cost.power.idle_w:.0f} W"
    yield "energy of an answer's token", f"{cost.joules_per_token:.1f} J"
    yield "tokens/s, prompts and answers", f"{cost.tokens_per_s:.0f}"
    yield "utilization", f"{cost.utilization:.2%}, {cost.tokens_per_month / 1e6:.1f} million tokens a month"
    yield "electricity", f"{cost.power_usd_per_month:.0f} USD a month"
    if cost.purchase_usd is not None and cost.capital_usd_per_month is not None:
        yield "accelerators", f"{cost.purchase_usd:.0f} USD, {cost.capital_usd_per_month:.0f} USD a month"
    yield "a million tokens", f"{cost.usd_per_million:.3f} USD; of answers alone {cost.usd_per_million_output:.3f} USD"
    if cost.rent_usd_per_hour is not None:
        yield (
            "the same rented",
            f"{cost.rent_usd_per_hour:.2f} USD an hour, {cost.rent_usd_per_million:.3f} USD a million",
        )
        yield "a purchase beats renting", _months(cost.months_to_cloud)
    if cost.api_usd_per_million is not None:
        yield "API", f"{cost.api_usd_per_million:.3f} USD a million tokens of this ratio"
        yield "a purchase beats the API", _months(cost.months_to_api)
        load = cost.tokens_per_day_to_api
        text = "no load that these machines can serve" if load is None else f"{load / 1e6:.2f} million tokens a day"
        yield "load from which it does", text


def _months(months: float | None) -> str:
    return "never at this load" if months is None else f"after {months:.1f} months"
