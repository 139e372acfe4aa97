"""``longboat cost``: watts and money of the best plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from typing import Any

from longboat.catalog.library import Library
from longboat.cli.plan.inputs.running_command import as_run, is_command, request_of
from longboat.cli.plan.outputs.size_command import rate_notes, rate_values
from longboat.cli.plan.plan_document import cost_values
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import planner_for
from longboat.core.errors import UserInputError
from longboat.planner.cost import Assumptions, cost_of

__all__ = ("Money", "assumptions_of", "run_cost")

EXAMPLES = {"--years": "3", "--tokens-per-day": "5000000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """The options of the command about money."""

    electricity: str = "United States"  # a price of one kWh in USD, or a region of the catalog
    utilization: float = 0.5
    tokens_per_day: float | None = None
    years: float = 3.0
    price_usd: float | None = None
    api: str = ""


def run_cost(model: str, request: PlanRequest, money: Money, *, as_json: bool) -> None:
    """Print what the best plan costs."""
    if is_command(model):
        model, request = request_of(model, request)
    planner = planner_for(request)
    assumed = assumptions_of(money, planner.library)
    api = planner.library.apis.find(money.api) if money.api else None
    shape = planner.read(model)
    planner = as_run(planner.for_files(model, shape), request, shape)
    planner, served = planner.at_rate(shape)
    found = planner.plan(shape)
    cost = cost_of(found.plans[0], found.cluster, found.demand, assumed, api)
    queue = planner.queue(served)
    notes = list(rate_notes(served, request.rate, queue))
    if as_json:
        best = found.plans[0]
        told: dict[str, Any] = {"plan": best.title, "cluster": found.cluster.title, "estimate": list(best.estimate)}
        told |= {"notes": notes, "rate": rate_values(served, request.rate, queue)}
        print(json.dumps(told | cost_values(cost), indent=2))
        return
    from longboat.cli.plan.plan_tables import print_cost

    print_cost(found, cost, notes)


def assumptions_of(money: Money, library: Library) -> Assumptions:
    """Return what is assumed about prices and use. Raises UserInputError for a number that cannot be."""
    if not 0 < money.utilization <= 1:
        raise UserInputError(
            f"--utilization {money.utilization:g} is not a share", hint="give 0.5 for half of the time"
        )
    for name, number in (("--years", money.years), ("--tokens-per-day", money.tokens_per_day)):
        if number is not None and not 0 < number < inf:
            raise UserInputError(f"{name} must be more than 0, not {number:g}", hint=f"{name} {EXAMPLES[name]}")
    if money.price_usd is not None and not 0 <= money.price_usd < inf:
        raise UserInputError(f"--price {money.price_usd:g} is not a price in USD", hint="--price 4000")
    return Assumptions(
        usd_per_kwh=_per_kwh(money.electricity, library),
        utilization=money.utilization,
        tokens_per_day=money.tokens_per_day,
        years=money.years,
        purchase_usd=money.price_usd,
    )


def _per_kwh(text: str, library: Library) -> float:
    try:
        price = float(text)
    except ValueError:
        return library.electricity.find(text).usd_per_kwh
    if not 0 <= price < 100:
        raise UserInputError(f"--electricity {text} is not a price of a kWh in USD", hint="--electricity 0.30")
    return price
