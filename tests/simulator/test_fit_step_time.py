"""Tests of the step's terms: the closed forms fit each other, and the terms fit the planner's time model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.core.plan import EngineMemory
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.memory.split_shape import AskedSplit, EngineKind
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.load import Load
from longboat.planner.predict.serving import predict
from longboat.planner.search.demand import Demand
from longboat.planner.search.search import search
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.plan.fit_step_time import fitted
from longboat.simulator.plan.planned_replica import planned_engine, speed_of


@given(
    kv_token_s=st.sampled_from([0.0, 1e-9, 1e-6]),
    sequences=st.integers(1, 300),
    kv_tokens=st.integers(0, 1_000_000),
    steps=st.integers(1, 5000),
)
def test_steps_within_is_the_inverse_of_their_time(
    kv_token_s: float, sequences: int, kv_tokens: int, steps: int
) -> None:
    time = StepTime(base_s=0.01, prompt_token_s=1e-5, sequence_s=1e-5, kv_token_s=kv_token_s)
    seconds = time.decode_s(steps, sequences, kv_tokens)
    assert time.steps_within(seconds, sequences, kv_tokens) == pytest.approx(steps, rel=1e-6)
    one_by_one = sum(time.mixed_s(0, 0.0, sequences, kv_tokens + at * sequences) for at in range(steps))
    assert seconds == pytest.approx(one_by_one, rel=1e-9)


def test_no_term_is_negative() -> None:
    rows = [((1.0, float(x)), 5.0 - 0.1 * x, 5.0) for x in range(10)]
    assert all(value >= 0.0 for value in fitted(rows))
    assert fitted([((1.0, float(x)), 2.0 + 3.0 * x, 1.0) for x in range(5)]) == pytest.approx([2.0, 3.0], rel=1e-6)


@pytest.mark.parametrize(("model", "machines"), [("Qwen3-32B", "1x(2xH100)"), ("Qwen3-8B", "1x(1xRTX4090)")])
def test_terms_give_the_planners_times(model: str, machines: str) -> None:
    library, calibration = built_in_library(), built_in_calibration()
    shape = shape_of_entry(library.models.find(model))
    demand = Demand(settings=EngineMemory(sequences=64))
    found = search([shape], parse_cluster(machines, library), demand, "vllm", calibration)
    forecast = found.plans[0].groups[0]
    time, limits = planned_engine(forecast, calibration)
    assert limits.max_num_seqs == 64 and limits.kv_blocks == forecast.kv_blocks
    asked = planned_engine(forecast, calibration, kv_tokens=160)
    assert asked[0] == time and asked[1].kv_blocks == 10
    for sequences in (1, 8, 64):
        load = Load(concurrency=sequences, prompt_tokens=1024, output_tokens=1.0, spread=0.0)
        expected_s = predict(forecast.deployment, load, calibration).step_s.value
        assert time.decode_s(1, sequences, sequences * 1024) == pytest.approx(expected_s, rel=0.05)
    for tokens in (1024, 4096):
        load = Load(concurrency=1, prompt_tokens=tokens, output_tokens=1.0, spread=0.0)
        expected_s = predict(forecast.deployment, load, calibration).prefill_s.value
        assert time.prefill_s(tokens) == pytest.approx(expected_s, rel=0.2)


def test_layers_that_share_blocks_have_the_tokens_that_fit() -> None:
    library, calibration = built_in_library(), built_in_calibration()
    shape = shape_of_entry(library.models.find("gpt-oss-20b"))
    found = search([shape], parse_cluster("1x(1xH100)", library), Demand(), "vllm", calibration)
    forecast = found.plans[0].groups[0]
    time, limits = planned_engine(forecast, calibration)
    assert forecast.kv_blocks is None
    assert limits.kv_blocks == forecast.fit.num_kv_tokens // limits.block_tokens > 0
    assert speed_of(time, limits).base_s == time.base_s


def test_all_data_parts_have_their_caches() -> None:
    library, calibration = built_in_library(), built_in_calibration()
    shape = shape_of_entry(library.models.find("DeepSeek-R1"))
    asked = AskedSplit(tensor=1, data=8, expert_parallel=True)
    demand = Demand(users=64, split=asked, data_attention=True)
    found = search([shape], parse_cluster("1x(8xH200)", library), demand, "vllm", calibration)
    forecast = found.plans[0].groups[0]
    _, limits = planned_engine(forecast, calibration)
    assert forecast.kv_blocks is not None and limits.kv_blocks == 8 * forecast.kv_blocks
    tokens = limits.kv_blocks * limits.block_tokens
    assert tokens == pytest.approx(forecast.fit.num_kv_tokens, rel=0.01)


@pytest.mark.parametrize(("engine", "sequences", "tokens"), [("vllm", 8 * 64, 4096), ("sglang", 64, 512)])
def test_limits_of_a_step_are_of_each_data_part_with_vllm_and_of_all_together_with_sglang(
    engine: EngineKind, sequences: int, tokens: int
) -> None:
    library, calibration = built_in_library(), built_in_calibration()
    shape = shape_of_entry(library.models.find("DeepSeek-R1"))
    settings = EngineMemory(sequences=64, batched_tokens=4096)
    asked = AskedSplit(tensor=1, data=8, expert_parallel=True)
    demand = Demand(users=1024, split=asked, data_attention=True, settings=settings)
    found = search([shape], parse_cluster("1x(8xH200)", library), demand, engine, calibration)
    forecast = found.plans[0].groups[0]
    _, limits = planned_engine(forecast, calibration)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.data_parts) == (sequences, tokens, 8)
    assert forecast.outcome is not None and forecast.outcome.running == sequences
