"""Prefill and decode apart beside replicas that do both."""

from __future__ import annotations

from longboat.catalog.library import built_in_library
from longboat.catalog.quantized_names import named_model
from longboat.planner.compare.disaggregated import Apart, apart
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand, Slo
from longboat.planner.search.search import SearchResult, search

LIBRARY = built_in_library()
CALIBRATION = built_in_calibration()
LONG = Demand(users=64, prompt_tokens=4000, output_tokens=500)


def found_on(on: str, demand: Demand = LONG) -> SearchResult:
    shape = named_model("Qwen3-32B-FP8", LIBRARY)
    return search([shape], parse_cluster(on, LIBRARY), demand, "vllm", CALIBRATION)


def told(found: SearchResult) -> Apart:
    one = apart(found.plans, found.cluster, CALIBRATION)
    assert one is not None
    return one


def test_decoding_apart_does_not_wait_for_prompts() -> None:
    found = found_on("8x(1xH100), net=100GbE")
    one = told(found)
    together = next(plan for plan in found.plans if plan.groups[0].layout == one.group.layout)
    assert one.itl_s < together.itl_s
    assert one.prefill + one.decode == one.group.layout.replicas


def test_requests_of_all_users_are_somewhere() -> None:
    """Little's law: users are requests a second times the time of one response."""
    one = told(found_on("8x(1xH100), net=100GbE"))
    output = LONG.traffic(1.0).mean_output_tokens
    under_way = one.tokens_per_s / output * (one.ttft_s + one.itl_s * output)
    assert 0.9 * LONG.users < under_way <= LONG.users * 1.001


def test_a_slow_network_is_filled_by_caches_and_replicas_that_do_both_win() -> None:
    fast, slow = (told(found_on(f"8x(1xH100), net={net}")) for net in ("100GbE", "10GbE"))
    assert slow.tokens_per_s < fast.tokens_per_s
    assert slow.link_busy > fast.link_busy
    found = found_on("8x(1xH100), net=10GbE")
    assert not slow.beats(found.plans[0])


def test_caches_stay_within_nodes_that_have_both_kinds() -> None:
    found = found_on("2x(2xH100), net=1GbE")
    one = told(found)
    assert (one.prefill, one.decode) == (2, 2)
    assert "GbE" not in one.link


def test_a_division_that_keeps_the_limit_beats_a_plan_that_misses_it() -> None:
    slo = Slo(itl_s=told(found_on("8x(1xH100), net=100GbE")).itl_s * 1.01)
    found = found_on("8x(1xH100), net=100GbE", Demand(users=64, prompt_tokens=4000, output_tokens=500, slo=slo))
    missing = [plan for plan in found.plans if plan.missed]
    one = told(found)
    assert missing
    assert not one.missed
    assert one.beats(missing[0])


def test_one_replica_cannot_be_divided() -> None:
    found = found_on("1xH100")
    assert apart(found.plans, found.cluster, CALIBRATION) is None
