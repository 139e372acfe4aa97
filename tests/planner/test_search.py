"""The search: plans that people ask about, and what must hold for every plan."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.machines.engine_choice import engine_for
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand, Slo, parse_slo
from longboat.planner.search.reasons import explained, settings_of
from longboat.planner.search.search import SearchResult, search

LIBRARY = built_in_library()
MIXED_64 = "16x(2xRTX4090)+16x(4xRTX3090)+16x(8xA100)+8x(2xA6000)+8x(8xL40S), net=25GbE"


@cache
def shape(name: str, quantization: str = "") -> ModelShape:
    found = shape_of_entry(LIBRARY.models.find(name))
    return requantized(found, quantization) if quantization else found


def plan(model: str, on: str, quantization: str = "", demand: Demand | None = None) -> SearchResult:
    cluster = parse_cluster(on, LIBRARY)
    engine = engine_for(cluster, LIBRARY)
    found = search([shape(model, quantization)], cluster, demand or Demand(), engine, built_in_calibration())
    return explained(found)


def test_four_nodes_of_two_cards_are_four_replicas_that_pool_nothing() -> None:
    """A 70B in 4 bits: tensor 2 within each node, about 45 GB for each replica, not 192."""
    best = plan("Llama-3.1-70B", "4x(2xRTX4090), net=10GbE", "awq", Demand(users=8)).best
    assert best is not None
    (group,) = best.groups
    assert (group.layout.replicas, group.layout.tensor, len(group.layout.places)) == (4, 2, 1)
    assert sum(rank.budget_bytes for rank in group.fit.ranks) == pytest.approx(47e9, rel=0.03)
    assert any("do not pool memory" in reason for reason in best.reasons)
    assert best.max_sequences == 4 * group.fit.max_sequences


@pytest.mark.parametrize("users", [1, 8, 32])
def test_what_is_too_large_for_a_node_passes_the_network_in_a_pipeline(users: int) -> None:
    best = plan("Qwen3-32B", "4x(2xRTX4090), net=10GbE", demand=Demand(users=users)).best
    assert best is not None
    assert (best.groups[0].layout.tensor, len(best.groups[0].layout.places)) == (2, 2)
    assert not best.groups[0].layout.over_network


def test_cards_that_differ_get_layers_by_memory_and_speed() -> None:
    """A published even pipeline of these had 14.4 of 24 GB and 15.2 of 16 GB in use."""
    best = plan("Qwen3-32B", "A5000 + A4000, net=1GbE", "awq", Demand(users=8, context_tokens=4096)).best
    assert best is not None
    (group,) = best.groups
    layers = {place.card.name: count for place, count in zip(group.layout.places, group.fit.split.stages, strict=True)}
    assert layers["RTX A5000"] > layers["RTX A4000"] > 16
    assert group.layer_setting.startswith("VLLM_PP_LAYER_PARTITION=")
    assert group.layer_setting in settings_of(group)


def test_processors_share_layers_by_rpc() -> None:
    best = plan("Llama-3.1-405B", "4x(EPYC9004 128GB), net=10GbE", "q4_k_m").best
    assert best is not None
    assert best.groups[0].engine == "llama.cpp"
    assert len(best.groups[0].layout.places) == 2  # the fewest that hold it: one stage computes after the other


def test_tensor_parallelism_crosses_a_fast_network_where_the_figures_say_so() -> None:
    best = plan("Qwen3-235B-A22B", "2xDGX Spark, net=200GbE", "awq").best
    assert best is not None
    assert best.groups[0].layout.over_network
    slow = plan("Qwen3-235B-A22B", "2xDGX Spark, net=1GbE", "awq", Demand(users=8)).best
    assert slow is not None
    assert not slow.groups[0].layout.over_network


@pytest.mark.parametrize(("model", "on"), [("Llama-3.1-70B", "8xMI300X"), ("Qwen3-30B-A3B", "M3 Ultra")])
def test_accelerators_of_other_makers_are_planned(model: str, on: str) -> None:
    assert plan(model, on).best is not None


def test_a_card_that_holds_nothing_is_said_to_be_idle() -> None:
    plans = plan("Qwen3-32B", "A5000 + A4000, net=1GbE", "awq").plans
    alone = [one for one in plans if one.groups[0].layout.num_ranks == 1]
    assert alone[0].idle == ("1 x RTX A4000",)


def test_limits_count_before_speed() -> None:
    found = plan("Qwen3-32B", "4x(2xRTX4090), net=10GbE", "awq", Demand(users=32, slo=Slo(ttft_s=0.75)))
    missed = [bool(one.missed) for one in found.plans]
    assert missed == sorted(missed)
    assert found.plans[0].ttft_s <= 0.75


def test_few_more_tokens_are_not_worth_users_whose_answers_take_long() -> None:
    """The small card would serve one of 16 users, and bring one percent."""
    demand = Demand(users=16)
    best, *others = plan("Qwen3-8B", "4x(2xRTX 3090) + 1x(1xRTX 3060), net=1GbE", "awq", demand).plans
    laggard = next(one for one in others if "RTX 3060" in one.title)
    assert best.idle == ("1 x RTX 3060 12GB",)
    assert best.tokens_per_s < laggard.tokens_per_s < 1.1 * best.tokens_per_s
    assert laggard.answer_s(demand) > 2 * best.answer_s(demand)
    assert any("its slowest replica takes" in reason for reason in laggard.reasons)


def test_a_little_more_speed_is_not_worth_a_replica_over_unlike_cards() -> None:
    best, *others = plan("Qwen3-30B-A3B", "1x(2xA100) + 1x(2xRTX 3090), net=25GbE", demand=Demand(users=8)).plans
    mixed = next(one for one in others if one.is_mixed)
    assert not best.is_mixed
    assert best.tokens_per_s < mixed.tokens_per_s < 1.1 * best.tokens_per_s


def test_machines_stay_idle_where_they_would_miss_the_limit() -> None:
    """Four A100 keep the limit by far; the small cards beside them, as their own replica, would not."""
    demand = Demand(users=8, prompt_tokens=3072, output_tokens=1024, slo=Slo(itl_s=0.05))
    best = plan("Qwen3-32B", "4x(1xA100) + 4x(1xRTX A4000)", "awq", demand).best
    assert best is not None
    assert not best.missed
    assert best.idle == ("4 x RTX A4000",)
    assert best.itl_s < 0.02


def test_nodes_with_different_numbers_of_one_card_are_one_pool() -> None:
    best = plan("Qwen3-8B", "1x(2xRTX4090) + 1x(1xRTX4090), net=10GbE", "awq", Demand(users=9)).best
    assert best is not None
    (group,) = best.groups
    assert group.layout.replicas == 3


def test_seven_cards_are_seven_replicas() -> None:
    best = plan("Qwen3-8B", "7x(1xRTX4090), net=10GbE", "awq", Demand(users=64)).best
    assert best is not None
    assert best.groups[0].layout.replicas == 7


def test_every_refused_layout_has_its_reason() -> None:
    found = plan("Llama-3.1-70B", "4x(3xRTX4090), net=10GbE")
    assert found.rejected
    assert all(one.why for one in found.rejected)
    assert any("attention heads" in one.why for one in found.rejected)


def test_an_engine_that_does_not_run_there_is_refused() -> None:
    with pytest.raises(UserInputError) as refused:
        engine_for(parse_cluster("M3 Ultra, engine=vllm", LIBRARY), LIBRARY)
    assert "llama.cpp" in refused.value.hint


def test_limits_are_read_from_text() -> None:
    assert parse_slo("ttft=500ms, itl=0.05s") == Slo(ttft_s=0.5, itl_s=0.05)
    assert parse_slo("ttft = 500 ms  itl=50ms") == Slo(ttft_s=0.5, itl_s=0.05)
    for text in ("ttft=fast", "tftt=5ms", "itl=0ms"):
        with pytest.raises(UserInputError):
            parse_slo(text)


@pytest.mark.parametrize("text", ["ttft=5", "itl=0.05", "ttft=2s,itl=50"])
def test_limit_without_a_unit_is_refused(text: str) -> None:
    """5 would be 5 ms to one reader and 5 s to another."""
    with pytest.raises(UserInputError, match="a time without a unit") as refused:
        parse_slo(text)
    name, _, number = text.split(",")[-1].partition("=")
    assert refused.value.hint == f"write --slo {name}={number}ms, or {name}={number}s"


def test_sixty_four_mixed_nodes_take_seconds() -> None:
    """Five seconds of CPU are the promise; this is a generous bound on what takes about two."""
    began_s = time.process_time()
    assert plan("Qwen3-235B-A22B", MIXED_64, demand=Demand(users=256)).best is not None
    assert time.process_time() - began_s < 5.0


CARDS = st.sampled_from(["RTX 4090", "RTX 3090", "RTX A4000", "RTX 5090", "L40S", "A100", "H200"])
NODES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), CARDS), min_size=1, max_size=2)
MODELS = st.sampled_from(
    [("Qwen3-8B", ""), ("Qwen3-32B", "awq"), ("Qwen3-30B-A3B", ""), ("Llama-3.1-70B", "fp8"), ("gpt-oss-120b", "")]
)


@settings(max_examples=25, deadline=None)
@given(nodes=NODES, model=MODELS, users=st.integers(1, 64), network=st.sampled_from(["1GbE", "100GbE"]))
def test_no_plan_exceeds_a_card_and_all_layers_are_placed(
    nodes: list[tuple[int, int, str]], model: tuple[str, str], users: int, network: str
) -> None:
    text = " + ".join(f"{count}x({each}x{name})" for count, each, name in nodes)
    found = plan(model[0], f"{text}, net={network}", model[1], Demand(users=users))
    total = sum(count * each for count, each, _ in nodes)
    for one in found.plans:
        assert sum(group.layout.replicas * group.layout.num_ranks for group in one.groups) <= total
        for group in one.groups:
            assert sum(group.fit.split.stages) == len(group.shape.layers)
            for rank in group.fit.ranks:
                assert rank.used_bytes <= rank.budget_bytes <= rank.card.usable_bytes


@settings(max_examples=20, deadline=None)
@given(memory=st.integers(8, 120), more=st.integers(1, 100), model=MODELS, count=st.sampled_from([1, 2, 4]))
def test_more_memory_never_turns_a_fit_into_a_misfit(
    memory: int, more: int, model: tuple[str, str], count: int
) -> None:
    small, large = (
        plan(model[0], f"{count}x(RTX 4090 {size}GB) + RTX A4000, net=10GbE", model[1])
        for size in (memory, memory + more)
    )
    assert large.plans or not small.plans
