"""How many requests at once serve a rate: about the least, on every curve of a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.planner.compare.sizing import Served, served_at
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand
from longboat.planner.search.ranking import Plan
from longboat.planner.search.search import search

LIBRARY = built_in_library()
Curve = Callable[[int], float]


@cache
def one_plan(model: str = "Qwen3-8B", on: str = "1xRTX4090", users: int = 1) -> Plan:
    shape, cluster = shape_of_entry(LIBRARY.models[model]), parse_cluster(on, LIBRARY)
    return search([shape], cluster, Demand(users=users), "vllm", built_in_calibration()).plans[0]


def plan_of(requests_per_s: float) -> Plan:
    """Return a plan of that speed."""
    (group,) = one_plan().groups
    speed = requests_per_s * group.demand.traffic(1.0).mean_output_tokens
    told = group.prediction
    outcome = replace(told, total_tokens_per_s=replace(told.total_tokens_per_s, value=speed))
    return Plan(groups=(replace(group, busy=1, outcome=outcome),))


def served(curve: Curve, rate: float, users: int = 1) -> Served:
    found = served_at(lambda number: plan_of(curve(number)), rate, users=users)
    assert found is not None
    return found


def capped(users: int) -> float:
    """Return the requests a second of a machine on which each takes ten seconds until 31.5 are there at once."""
    return min(users * 0.1, 3.15)


@pytest.mark.parametrize("begin", [1, 20, 64, 500])
def test_a_rate_near_the_top_is_served_without_a_queue(begin: int) -> None:
    found = served(capped, 3.0, begin)
    assert found.kept
    assert 30 <= found.users <= 33


@pytest.mark.parametrize("rate", [3.5, 50.0, 5000.0])
def test_a_rate_that_is_not_served_has_no_more_requests_than_the_machines_can_use(rate: float) -> None:
    found = served(capped, rate)
    assert not found.kept
    assert found.requests_per_s == pytest.approx(3.15, rel=0.02)
    assert found.users <= 34


def test_a_doubling_that_brings_little_but_serves_the_rate_is_taken() -> None:
    curve = {1: 5.0, 2: 9.0, 3: 9.5, 4: 9.9, 5: 9.95, 6: 9.99, 7: 10.05, 8: 10.1}
    assert served(lambda users: curve[min(users, 8)], 10.0).kept


@settings(max_examples=100, deadline=None)
@given(
    top=st.floats(0.5, 100.0),
    answer_s=st.floats(0.5, 60.0),
    bend=st.floats(1.0, 8.0),
    share=st.floats(0.01, 0.99),
    begin=st.integers(1, 2000),
)
def test_about_the_least_requests_at_once_are_found(
    top: float, answer_s: float, bend: float, share: float, begin: int
) -> None:
    """A concave curve: the larger ``bend``, the sharper it turns to its top."""

    def curve(users: int) -> float:
        alone = users / answer_s
        return float(alone / (1 + (alone / top) ** bend) ** (1 / bend))

    rate = top * share
    found = served(curve, rate, begin)
    if found.kept:
        low, high = 0, found.users
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if requests(curve, middle) >= rate else (middle, high)
        assert found.users <= high * 17 / 16
    else:
        assert curve(2 * found.users) < 1.05 * found.requests_per_s


def requests(curve: Curve, users: int) -> float:
    plan = plan_of(curve(users))
    return plan.tokens_per_s / plan.groups[0].demand.traffic(1.0).mean_output_tokens


@pytest.mark.parametrize(("rate", "most"), [(3.0, 33), (3.12, 36)])
def test_a_card_near_its_top_answers_at_once(rate: float, most: int) -> None:
    found = served_at(lambda users: one_plan(users=users), rate)
    assert found is not None and found.kept
    assert found.users <= most
    assert found.plan.ttft_s < 1.0
