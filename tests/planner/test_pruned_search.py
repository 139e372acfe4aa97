"""The search with and without bounds: leaving out what cannot be best changes no plan, and bounds are never too low."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from random import Random
from statistics import median

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.quantized_names import named_model
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.machines.pools import pools_of
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.fit import plan_fit
from longboat.planner.memory.split_shape import EngineKind, Split
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.machine import LOOPBACK
from longboat.planner.search.ceiling import Ceilings
from longboat.planner.search.demand import Demand, Slo
from longboat.planner.search.forecast import Forecasters
from longboat.planner.search.partition import Place, StageTimes, partitions
from longboat.planner.search.search import Search, SearchResult, search

LIBRARY = built_in_library()
CALIBRATION = built_in_calibration()
MODELS = ("Qwen3-8B", "Qwen3-32B-AWQ", "Qwen3-30B-A3B", "gpt-oss-120b", "Llama-3.1-70B-FP8", "Gemma3-27B")
NODES = ("2xRTX4090", "RTX3090", "4xL40S", "2xA6000", "RTX5090", "4xH100")
NETWORKS = ("1GbE", "10GbE", "100GbE")
CASES = range(20)


@cache
def shape(name: str) -> ModelShape:
    return named_model(name, LIBRARY)


def case(seed: int) -> tuple[ModelShape, str, Demand]:
    """Return a model, machines and a demand."""
    random = Random(seed)
    kinds = random.sample(NODES, random.choice((1, 2, 2, 3)))
    nodes = "+".join(f"{random.choice((1, 2, 3))}x({kind})" for kind in kinds)
    slo = random.choice((Slo(), Slo(), Slo(itl_s=0.03), Slo(ttft_s=1.0, itl_s=0.1)))
    demand = Demand(
        users=random.choice((1, 4, 20, 100, 400)),
        prompt_tokens=random.choice((64, 1024, 4000)),
        output_tokens=random.choice((16, 256)),
        prefix_share=random.choice((0.0, 0.5)),
        data_attention=random.random() < 0.5,
        slo=slo,
    )
    return shape(random.choice(MODELS)), f"{nodes}, net={random.choice(NETWORKS)}", demand


def searched(seed: int, *, prune: bool) -> SearchResult:
    model, on, demand = case(seed)
    return search([model], parse_cluster(on, LIBRARY), demand, "vllm", CALIBRATION, prune=prune)


@pytest.mark.parametrize("seed", CASES)
def test_plans_are_those_of_a_search_without_bounds(seed: int) -> None:
    pruned, whole = searched(seed, prune=True), searched(seed, prune=False)
    assert [(plan.title, plan.tokens_per_s) for plan in pruned.plans] == [
        (plan.title, plan.tokens_per_s) for plan in whole.plans
    ]


@pytest.mark.parametrize("seed", CASES)
def test_bound_is_never_below_the_forecast(seed: int) -> None:
    model, on, demand = case(seed)
    forecaster = Forecasters(demand, CALIBRATION).of(model, "vllm")
    one = Search(pools_of(parse_cluster(on, LIBRARY)), forecaster)
    bounds = Ceilings(forecaster)
    for layout in list(one.every_layout())[::5]:
        for share in (0.3, 1.0):
            if len(layout.places) <= len(model.layers):
                found = one.best(layout, share)
                assert found.tokens_per_s <= bounds.tokens_per_s(layout, share), layout.split_title


STRICT = Slo(ttft_s=0.02, itl_s=0.001)  # limits that none keeps


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("seed", CASES)
def test_limits_are_missed_by_no_less_than_the_bound_says(seed: int, engine: EngineKind) -> None:
    model, on, demand = case(seed)
    forecaster = Forecasters(replace(demand, slo=STRICT), CALIBRATION).of(model, engine)
    one = Search(pools_of(parse_cluster(on, LIBRARY)), forecaster)
    bounds = Ceilings(forecaster)
    for layout in list(one.every_layout())[::7]:
        found = one.best(layout) if len(layout.places) <= len(model.layers) else None
        if found is not None and found.outcome is not None:
            excess = STRICT.excess(found.prediction.ttft_s.value, found.prediction.itl_s.value)
            assert bounds.least_excess(layout) <= excess, layout.split_title


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("seed", CASES)
def test_plans_that_miss_limits_are_those_of_a_search_without_bounds(seed: int, engine: EngineKind) -> None:
    model, on, demand = case(seed)
    strict = replace(demand, slo=STRICT)
    pruned, whole = (
        search([model], parse_cluster(on, LIBRARY), strict, engine, CALIBRATION, prune=prune) for prune in (True, False)
    )
    assert [(plan.title, plan.tokens_per_s) for plan in pruned.plans] == [
        (plan.title, plan.tokens_per_s) for plan in whole.plans
    ]


def test_bounds_spare_most_forecasts() -> None:
    """Without this, the test above would hold for bounds that leave nothing out."""
    made = {}
    for prune in (True, False):
        model, on, demand = shape("Qwen3-32B"), "4x(2xRTX4090)+4x(4xL40S)+2x(4xH100), net=10GbE", Demand(users=64)
        found = search([model], parse_cluster(on, LIBRARY), demand, "vllm", CALIBRATION, prune=prune)
        made[prune] = sum("at most" in one.why for one in found.rejected)
    assert made[False] == 0
    assert made[True] > 50


def test_bounds_on_limits_are_near_the_times() -> None:
    """Far bounds would be right, and leave nothing out; experts that are divided by copies count too."""
    on = parse_cluster("4x(8xH100)+4x(8xH200)+2x(8xA100), net=InfiniBand", LIBRARY)
    forecaster = Forecasters(Demand(users=1024, slo=STRICT), CALIBRATION).of(shape("DeepSeek-V3"), "vllm")
    bounds, one = Ceilings(forecaster), Search(pools_of(on), forecaster)
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for layout in list(one.every_layout())[::5]:
        found = one.best(layout)
        if found.outcome is not None:
            excess = STRICT.excess(found.prediction.ttft_s.value, found.prediction.itl_s.value)
            ratios[layout.expert_parallel].append(excess / bounds.least_excess(layout))
    assert median(ratios[True]) < 1.8
    assert median(ratios[False]) < 1.35


def test_bounds_know_that_layers_are_whole() -> None:
    """Stages on cards of three speeds have few layers each: a bound for layers of any size spares a fifth of them."""
    model, on, demand = shape("DeepSeek-V3"), "4x(8xH100)+4x(8xH200)+2x(8xB200), net=InfiniBand", Demand(users=256)
    found = search([model], parse_cluster(on, LIBRARY), demand, "vllm", CALIBRATION)
    mixed = [one for one in found.rejected if " + " in one.what]
    assert sum("at most" in one.why for one in mixed) > len(mixed) / 3


@pytest.mark.parametrize("seed", CASES)
def test_no_division_has_a_quicker_slowest_stage(seed: int) -> None:
    random = Random(seed)
    model, demand = shape(random.choice(("Qwen3-8B", "gpt-oss-120b", "Gemma3-27B"))), Demand(users=16)
    kinds = random.sample(("RTX4090", "L40S", "H100", "B200", "A100"), 3)
    pools = pools_of(parse_cluster("+".join(f"1x({kind})" for kind in kinds) + ", net=100GbE", LIBRARY))
    places = [Place(pool=pool.number, card=pool.card, machine=pool.machine, link=LOOPBACK) for pool in pools]
    times = StageTimes(model, engine_traits("vllm"), demand.traffic(1.0))
    load = replace(demand.load("vllm", 16), num_sequences=6)

    def slowest_s(stages: tuple[int, ...]) -> float:
        ends = [0, *accumulate(stages)]
        spent = [
            sum(times.layer_s(layer, place, 1, 1, 2.0) for layer in model.layers[start:stop])
            for place, (start, stop) in zip(places, pairwise(ends), strict=True)
        ]
        return max(*spent[:-1], spent[-1] + times.head_s(places[-1], 1, 1, 2.0))

    found = partitions(model, places, load, times, tensor=1, expert_parallel=False)[0]
    count = len(model.layers)
    others = ((one, two, count - one - two) for one in range(1, count - 1) for two in range(1, count - one))
    cards = [place.card for place in places]
    able = (stages for stages in others if plan_fit(model, cards, Split(stages=stages), load).holds)
    assert slowest_s(found) <= min(map(slowest_s, able)) * (1 + 1e-5)
