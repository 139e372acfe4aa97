"""Watts and money."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.planner.cost import Assumptions, Cost, break_even_months, cost_of, even_tokens_per_day, power_of
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand
from longboat.planner.search.search import search

LIBRARY = built_in_library()
DEMAND = Demand(users=8)


def cost(assumed: Assumptions, api: str = "", on: str = "2xRTX4090") -> Cost:
    shape = requantized(shape_of_entry(LIBRARY.models["Llama-3.1-70B"]), "awq")
    cluster = parse_cluster(on, LIBRARY)
    plan = search([shape], cluster, DEMAND, "vllm", built_in_calibration()).plans[0]
    return cost_of(plan, cluster, DEMAND, assumed, LIBRARY.apis.find(api) if api else None)


def test_power_counts_cards_and_hosts() -> None:
    power = power_of(parse_cluster("2x(2xRTX4090)", LIBRARY))
    assert power.busy_w == pytest.approx(2 * (2 * 450 * 0.7 + 120))
    assert power.idle_w < power.mean_w(0.5) < power.busy_w


def test_a_measured_system_has_no_host_besides() -> None:
    entry = LIBRARY.accelerators.find("M2 Ultra")
    assert power_of(parse_cluster("M2 Ultra", LIBRARY)).busy_w == entry.wall_w


def test_a_million_tokens_cost_capital_and_power_over_the_tokens_of_a_month() -> None:
    found = cost(Assumptions(usd_per_kwh=0.2, utilization=1.0, purchase_usd=3600.0, years=3.0))
    month = 100.0 + found.power.busy_w / 1000 * 730 * 0.2
    assert found.usd_per_month == pytest.approx(month)
    assert found.usd_per_million == pytest.approx(month / found.tokens_per_month * 1e6)
    assert found.usd_per_million_output == pytest.approx(found.usd_per_million * 1280 / 256)


def test_idle_machines_make_tokens_dearer() -> None:
    busy, idle = (cost(Assumptions(usd_per_kwh=0.2, utilization=share)) for share in (0.9, 0.1))
    assert idle.usd_per_million > 3 * busy.usd_per_million
    assert {found.utilization for found in busy.what_if} == {0.1, 0.9, 1.0}


def test_what_costs_less_than_the_power_never_breaks_even() -> None:
    """The guide's case: 100K tokens a day at 0.03 $/1K are 90 $ a month, power alone is 150 $."""
    assert break_even_months(4000.0, 150.0, 90.0) is None
    needed = even_tokens_per_day(4000.0, 150.0, 30.0, 8.0)
    assert break_even_months(4000.0, 150.0, needed * 365 / 12 / 1e6 * 30.0) == pytest.approx(8.0, rel=0.01)


def test_the_load_from_which_a_purchase_pays_is_that_at_which_it_does() -> None:
    api = "0.03 USD per 1K tokens"
    assumed = Assumptions(usd_per_kwh=0.17, tokens_per_day=100_000.0, purchase_usd=4000.0)
    found = cost(assumed, api)
    assert found.tokens_per_day_to_api is not None
    even = cost(replace(assumed, tokens_per_day=found.tokens_per_day_to_api), api)
    assert even.months_to_api == pytest.approx(36.0, rel=0.01)


def test_a_cheap_host_is_never_beaten_by_a_slow_machine() -> None:
    found = cost(Assumptions(usd_per_kwh=0.42, utilization=0.1), "Llama 70B at a low-price host")
    assert found.months_to_api is None


def test_accelerators_without_a_price_are_named() -> None:
    entry = next(entry for entry in LIBRARY.accelerators.values() if not entry.price_usd and entry.memory_mib > 40000)
    found = cost(Assumptions(usd_per_kwh=0.2), on=f"8x{entry.name}")
    assert found.purchase_usd is None
    assert found.without_price == (entry.name,)
