"""Which sets of nodes may ask for fewer bits, and what searches share."""

from __future__ import annotations

from random import Random

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.quantized_names import named_model
from longboat.planner.compare.choices import groups_of
from longboat.planner.compare.comparison import Comparison
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.advice import quantizations_below
from longboat.planner.search.demand import Demand, Slo
from longboat.planner.search.forecast import Forecasters
from longboat.planner.search.search import search

LIBRARY, CALIBRATION = built_in_library(), built_in_calibration()
NODES = ("1xH100", "2xRTX4090", "4xL40S", "8xA100")


@pytest.mark.parametrize("seed", range(20))
def test_a_larger_cluster_has_all_groups_of_a_smaller_one(seed: int) -> None:
    random = Random(seed)
    counts = {node: random.randint(0, 9) for node in NODES}
    counts[NODES[0]] += 1
    more = {node: count + random.randint(0, 3) for node, count in counts.items()}
    small, large = (
        parse_cluster(" + ".join(f"{count}x({node})" for node, count in told.items() if count), LIBRARY)
        for told in (counts, more)
    )
    holding: dict[object, bool] = {kind.key: random.random() < 0.5 for kind in large.kinds if random.random() < 0.8}
    groups = [
        {frozenset((kind.key, kind.count) for kind in group.kinds) for group in groups_of(one, holding)}
        for one in (small, large)
    ]
    assert groups[0] <= groups[1]


@pytest.mark.parametrize("on", ["3x(2xRTX4090) + 2x(1xL40S), net=10GbE", "2x(8xH100) + 1x(4xH200), net=100GbE"])
def test_what_searches_share_changes_no_plan(on: str) -> None:
    cluster, shape, demand = parse_cluster(on, LIBRARY), named_model("Qwen3-32B", LIBRARY), Demand(users=64)
    shared = Forecasters(demand, CALIBRATION)
    found = [search([shape], cluster, demand, "vllm", CALIBRATION, shared).plans for _ in range(2)]
    assert found[0] == found[1] == search([shape], cluster, demand, "vllm", CALIBRATION).plans


def test_fewer_bits_stay_within_nodes_where_a_few_nodes_ask_for_them() -> None:
    cluster, demand = parse_cluster("4x(1xH100), net=100GbE", LIBRARY), Demand(users=128)
    model = named_model("Qwen3-32B", LIBRARY)
    comparison = Comparison(shape=model, library=LIBRARY, calibration=CALIBRATION, demand=demand, quantization="")
    plans = comparison.best(cluster, fewer_bits=True).plans
    changed = [plan for plan in plans if plan.format == "fp8"]
    assert changed and not any(group.layout.crosses_nodes for plan in changed for group in plan.groups)
    kept = comparison.best(cluster, fewer_bits=False).plans
    assert {plan.format for plan in kept} == {"bfloat16"}


@pytest.mark.parametrize(("on", "formats"), [("8xA100", ["fp8", "awq"]), ("8xV100", ["gptq-int8", "gptq"])])
def test_formats_of_old_cards_are_for_old_cards(on: str, formats: list[str]) -> None:
    found = quantizations_below(named_model("Qwen3-32B", LIBRARY), "vllm", parse_cluster(on, LIBRARY))
    assert [shape.quantization for shape in found] == formats


def test_plans_behind_the_best_few_are_kept_for_what_is_said_of_their_formats() -> None:
    on = "4x(8xH100) + 4x(8xH200) + 4x(8xA100) + 4x(8xB200), net=InfiniBand"
    model, demand = named_model("DeepSeek-V3", LIBRARY), Demand(users=2048)
    comparison = Comparison(shape=model, library=LIBRARY, calibration=CALIBRATION, demand=demand, quantization="")
    found = comparison.best(parse_cluster(on, LIBRARY), fewer_bits=True)
    assert {plan.format for plan in found.plans} == {"awq"}
    assert "fp8" in {plan.format for plan in found.behind}


@pytest.mark.parametrize("limit_ms", [45, 40, 20])
def test_a_limit_takes_no_format_away_that_a_few_nodes_ask_for_without_it(limit_ms: int) -> None:
    """Without limits, the best plan in bfloat16 crosses nodes, so fp8 is compared; with these it stays within one."""
    cluster, model = parse_cluster("2x(2xH100), net=InfiniBand", LIBRARY), named_model("Llama-3.1-70B", LIBRARY)
    demand = Demand(users=64, slo=Slo(itl_s=limit_ms / 1e3))
    comparison = Comparison(shape=model, library=LIBRARY, calibration=CALIBRATION, demand=demand, quantization="")
    best = comparison.best(cluster, fewer_bits=True).best
    assert best is not None and best.format == "fp8"
    assert bool(best.missed) == (limit_ms == 20)
