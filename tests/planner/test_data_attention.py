"""DP attention: requests divided over ranks that hold copies of all weights but the experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.split_shape import AskedSplit, EngineKind, Load, Split, card_of
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand
from longboat.planner.search.reasons import settings_of
from longboat.planner.search.search import SearchResult, search

LIBRARY = built_in_library()
LONG = Demand(users=256, prompt_tokens=8192, output_tokens=1024, data_attention=True)


def shape(name: str) -> ModelShape:
    return shape_of_entry(LIBRARY.models.find(name))


def fit_of(name: str, split: Split, engine: EngineKind = "vllm") -> Fit:
    cards = [card_of(LIBRARY.accelerators.find("H200"))] * split.num_ranks
    return plan_fit(shape(name), cards, split, Load(context_tokens=8192, num_sequences=8, engine=engine))


def plan(name: str, demand: Demand, engine: EngineKind = "vllm") -> SearchResult:
    cluster = parse_cluster("8xH200", LIBRARY)
    return search([shape(name)], cluster, demand, engine, built_in_calibration())


@pytest.mark.parametrize("name", ["DeepSeek-R1", "Qwen3-30B-A3B"])
def test_experts_are_divided_and_all_else_is_copied(name: str) -> None:
    model = shape(name)
    split = Split(tensor=8, stages=(len(model.layers),), expert_parallel=True, data=8)
    cut, copied = fit_of(name, replace(split, data=1)), fit_of(name, split)
    (whole,) = {rank.weight_bytes for rank in fit_of("Qwen3-30B-A3B", Split(stages=(48,))).ranks}
    for rank in copied.ranks:
        assert rank.weights["experts"] == cut.ranks[0].weights["experts"]
        assert rank.weights["attention"] == sum(
            weight.num_bytes for layer in model.layers for weight in layer.weights if weight.part == "attention"
        )
        assert rank.weights["attention"] > 4 * cut.ranks[0].weights["attention"]
        assert rank.used_bytes <= rank.budget_bytes
    if name == "Qwen3-30B-A3B":
        assert copied.ranks[0].weight_bytes < whole


def test_a_latent_cache_is_kept_once_and_not_by_each_rank() -> None:
    model = shape("DeepSeek-R1")
    split = Split(tensor=8, stages=(len(model.layers),), expert_parallel=True, data=8)
    cut, copied = fit_of("DeepSeek-R1", replace(split, data=1)), fit_of("DeepSeek-R1", split)
    assert copied.ranks[0].sequence_bytes == cut.ranks[0].sequence_bytes
    assert copied.max_sequences > 3 * cut.max_sequences
    assert copied.max_sequences == 8 * min(rank.room_bytes // rank.sequence_bytes for rank in copied.ranks)
    assert copied.num_kv_tokens == pytest.approx(8 * min(rank.num_tokens for rank in copied.ranks))
    assert copied.max_context_tokens <= cut.max_context_tokens * 2


def test_heads_need_not_be_divided() -> None:
    """28 heads and tensor 8 do not go together; copies do not care."""
    model = shape("GLM-4.5-Air")
    layers = tuple(replace(layer, num_heads=28) for layer in model.layers)
    odd = replace(model, layers=layers)
    cards = [card_of(LIBRARY.accelerators.find("H200"))] * 8
    split = Split(tensor=8, stages=(len(layers),), expert_parallel=True)
    asked = Load(context_tokens=8192, num_sequences=8)
    assert not plan_fit(odd, cards, split, asked).fits
    assert plan_fit(odd, cards, replace(split, data=8), asked).fits


def test_many_long_requests_of_a_latent_cache_are_served_best_so() -> None:
    best = plan("DeepSeek-R1", LONG).best
    assert best is not None
    group = best.groups[0]
    assert group.layout.data > 1
    assert "data 8 x expert parallel" in group.title
    usual = plan("DeepSeek-R1", replace(LONG, data_attention=False)).best
    assert usual is not None
    assert best.tokens_per_s > usual.tokens_per_s


def test_one_request_is_not_served_so() -> None:
    best = plan("DeepSeek-R1", replace(LONG, users=1)).best
    assert best is not None
    assert best.groups[0].layout.data == 1


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("vllm", ("--data-parallel-size 8", "--enable-expert-parallel")),
        ("sglang", ("--tp-size 8", "--attn-dp-size 8", "--ep-size 8")),
    ],
)
def test_the_engine_is_told(engine: EngineKind, told: tuple[str, ...]) -> None:
    plans = plan("DeepSeek-R1", LONG, engine).plans
    group = next(one.groups[0] for one in plans if one.groups[0].layout.data > 1)
    settings = settings_of(group)
    assert set(told) <= set(settings)
    assert not any("--tensor-parallel-size" in setting for setting in settings)


@pytest.mark.parametrize(
    ("name", "demand"),
    [
        ("DeepSeek-R1", replace(LONG, data_attention=False)),
        ("Llama-3.1-70B", LONG),
        ("DeepSeek-R1", replace(LONG, split=AskedSplit(tensor=8))),
    ],
)
def test_it_is_tried_where_it_is_allowed_and_there_are_experts(name: str, demand: Demand) -> None:
    found = plan(name, demand)
    assert found.plans
    assert not any(group.layout.data > 1 for one in found.plans for group in one.groups)
