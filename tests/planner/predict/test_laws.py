"""What was seen on real clusters must come out of the formulas: defaults only, nothing fitted to these."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predict_builders import ETHERNET, H100, NVLINK, deploy, link, machine, predicted, shape_of, single

from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Deployment
from longboat.planner.predict.features import features_of
from longboat.planner.predict.load import Load
from longboat.planner.predict.serving import predict


@pytest.fixture(scope="module")
def dense() -> ModelShape:
    return shape_of("Llama-3.1-8B")


@pytest.fixture(scope="module")
def large() -> ModelShape:
    return shape_of("Llama-3.1-70B")


@pytest.fixture(scope="module")
def mixture() -> ModelShape:
    return shape_of("Qwen3-235B-A22B")


def tokens_per_s(deployment: Deployment, load: Load | None = None) -> float:
    return predicted(deployment, load).request_tokens_per_s.value


def test_llama_cpp_rpc_slows_with_every_node_added(mixture: ModelShape) -> None:
    shape, mac, cable = shape_of("Qwen3-235B-A22B", "q8_0"), machine("M3 Ultra"), link("Thunderbolt 5")
    speeds = [tokens_per_s(deploy(shape, mac, pipeline=n, hop=cable, engine="llama.cpp")) for n in (1, 2, 4)]
    assert speeds[0] > speeds[1] > speeds[2]


def test_stages_of_llama_cpp_compute_in_turn_whatever_the_load() -> None:
    """vLLM has a batch in each stage: a second stage nearly doubles its tokens under load. llama.cpp has one batch."""
    shape, box, load = (
        shape_of("Llama-3.1-70B", "q8_0"),
        machine("Strix Halo"),
        Load(prompt_tokens=512, output_tokens=256, concurrency=32),
    )

    def gain(engine: str) -> float:
        one, two = (deploy(shape, box, pipeline=n, hop=link("50GbE"), engine=engine) for n in (1, 2))
        return predicted(two, load).total_tokens_per_s.value / predicted(one, load).total_tokens_per_s.value

    assert gain("llama.cpp") < 1 < gain("vllm")


def test_tensor_parallel_over_rdma_gains_less_than_its_nodes(mixture: ModelShape) -> None:
    shape, mac, rdma = shape_of("Qwen3-235B-A22B", "mlx-8bit"), machine("M3 Ultra"), link("Thunderbolt 5 RDMA")
    one, two, four = (tokens_per_s(deploy(shape, mac, tensor=n, over=rdma, engine="mlx")) for n in (1, 2, 4))
    assert one < two < four < 4 * one
    assert four / two < two / one


def test_two_boxes_by_rpc_reach_two_thirds_of_the_bandwidth_of_one() -> None:
    shape, box = shape_of("GLM-4.6", "q4_k_m"), machine("Strix Halo")
    speed = tokens_per_s(deploy(shape, box, pipeline=2, hop=link("50GbE"), engine="llama.cpp"))
    active = shape.weight_bytes * shape.num_active_params / shape.num_params
    assert 0.45 < speed * active / box.bandwidth_bytes_per_s < 0.8


def test_pipeline_leaves_the_time_of_a_token_as_it_was_and_tensor_parallel_halves_it(large: ModelShape) -> None:
    spark, cable = machine("GB10"), link("200GbE RoCE")
    one = predicted(deploy(large, spark)).itl_s.value
    pipeline = predicted(deploy(large, spark, pipeline=2, hop=cable)).itl_s.value
    tensor = predicted(deploy(large, spark, tensor=2, over=cable)).itl_s.value
    assert pipeline == pytest.approx(one, rel=0.1)
    assert tensor == pytest.approx(one / 2, rel=0.15)


def test_tensor_parallel_of_two_gains_more_under_concurrency_than_alone() -> None:
    shape, spark, cable = shape_of("gpt-oss-120b"), machine("GB10"), link("200GbE RoCE")
    one, two = deploy(shape, spark), deploy(shape, spark, tensor=2, over=cable)
    gains = [tokens_per_s(two, single(concurrency=c)) / tokens_per_s(one, single(concurrency=c)) for c in (1, 16)]
    assert 1.0 < gains[0] < gains[1] < 2.0


def test_pipeline_does_not_care_for_twice_the_bandwidth(large: ModelShape) -> None:
    card, load = machine("GH200"), Load(concurrency=32, prompt_tokens=512, output_tokens=256)
    slow = link("InfiniBand NDR")
    fast = replace(slow, bandwidth_bytes_per_s=2 * slow.bandwidth_bytes_per_s)
    times = [predicted(deploy(large, card, pipeline=2, hop=hop), load).itl_s.value for hop in (slow, fast)]
    assert times[0] == pytest.approx(times[1], rel=0.03)


def test_long_contexts_collapse_the_speed() -> None:
    shape, box = shape_of("GLM-4.6", "q4_k_m"), machine("Strix Halo")
    replica = deploy(shape, box, pipeline=2, hop=link("50GbE"), engine="llama.cpp")
    short, long = (tokens_per_s(replica, single(prompt_tokens=tokens)) for tokens in (512, 32_768))
    assert long < 0.75 * short


def test_tensor_parallel_over_ethernet_is_bound_by_latency(large: ModelShape) -> None:
    """160 all-reduces a token: ten times the bandwidth helps less than a tenth of the latency."""
    now = predicted(deploy(large, tensor=4, over=ETHERNET)).itl_s.value
    wider = replace(ETHERNET, bandwidth_bytes_per_s=10 * ETHERNET.bandwidth_bytes_per_s)
    quicker = replace(ETHERNET, latency_s=ETHERNET.latency_s / 10)
    assert predicted(deploy(large, tensor=4, over=wider)).itl_s.value > 0.9 * now
    assert predicted(deploy(large, tensor=4, over=quicker)).itl_s.value < 0.5 * now


def test_tensor_parallel_over_ethernet_makes_prompts_slow(large: ModelShape) -> None:
    """2,048 tokens of a 70B move 5.4 GB in all-reduces: seconds over 10 GbE."""
    load = single(prompt_tokens=2048)
    assert predicted(deploy(large, tensor=2, over=ETHERNET), load).ttft_s.value > 3.0
    assert predicted(deploy(large, tensor=2, over=NVLINK), load).ttft_s.value < 1.0


degrees = st.sampled_from([1, 2, 4, 8])
loads = st.builds(
    Load,
    concurrency=st.integers(1, 256).map(float),
    prompt_tokens=st.integers(16, 32_768).map(float),
    output_tokens=st.integers(16, 4096).map(float),
    spread=st.sampled_from([0.0, 0.2]),
)
engines = st.sampled_from(["vllm", "sglang", "llama.cpp"])


@settings(max_examples=40, deadline=None)
@given(tensor=degrees, load=loads, engine=engines, factor=st.floats(1.01, 8.0))
def test_more_bandwidth_is_never_slower(tensor: int, load: Load, engine: str, factor: float) -> None:
    shape = shape_of("Llama-3.1-8B")
    faster = replace(H100, bandwidth_bytes_per_s=H100.bandwidth_bytes_per_s * factor)
    quick, usual = (predicted(deploy(shape, card, tensor=tensor, engine=engine), load) for card in (faster, H100))
    assert quick.itl_s.value <= usual.itl_s.value * (1 + 1e-9)
    assert quick.prefill_s.value <= usual.prefill_s.value * (1 + 1e-9)
    # Faster decoding brings the next prompts sooner, so a first token may wait longer; a whole answer never does.
    answers_s = [found.ttft_s.value + load.mean_output_tokens * found.itl_s.value for found in (quick, usual)]
    assert answers_s[0] <= answers_s[1] * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(tensor=degrees, pipeline=degrees, load=loads, engine=engines, more=st.integers(1, 64))
def test_more_requests_never_make_one_faster(tensor: int, pipeline: int, load: Load, engine: str, more: int) -> None:
    replica = deploy(shape_of("Qwen3-30B-A3B"), tensor=tensor, pipeline=pipeline, engine=engine)
    fuller = replace(load, concurrency=load.concurrency + more)
    assert predicted(replica, fuller).itl_s.value >= predicted(replica, load).itl_s.value * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(load=loads, engine=engines)
def test_intervals_hold_the_value(load: Load, engine: str) -> None:
    found = predicted(deploy(shape_of("Llama-3.1-8B"), engine=engine), load)
    for number in (found.itl_s, found.ttft_s, found.total_tokens_per_s, found.request_tokens_per_s):
        assert 0.0 < number.low <= number.value <= number.high


def test_uneven_stages_wait_for_the_slowest_only_under_load(dense: ModelShape) -> None:
    even = deploy(dense, pipeline=2)
    stages = tuple(replace(stage, num_layers=count) for stage, count in zip(even.stages, (24, 8), strict=True))
    times = {
        load.concurrency: predicted(replace(even, stages=stages), load).itl_s.value / predicted(even, load).itl_s.value
        for load in (single(), single(concurrency=32))
    }
    assert times[1.0] == pytest.approx(1.0, rel=0.02)
    assert times[32.0] > 1.1


@pytest.mark.parametrize(("prompt_tokens", "slower"), [(512, False), (65536, True)])
def test_a_prompt_waits_for_the_slowest_stage_only_if_it_has_many_chunks(
    dense: ModelShape, prompt_tokens: int, slower: bool
) -> None:
    even = deploy(dense, pipeline=2)
    stages = tuple(replace(stage, num_layers=count) for stage, count in zip(even.stages, (24, 8), strict=True))
    load = single(prompt_tokens=prompt_tokens)
    ratio = predicted(replace(even, stages=stages), load).prefill_s.value / predicted(even, load).prefill_s.value
    assert (ratio > 1.2) is slower
    assert slower or ratio == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("name", "engine", "times"), [("EPYC 7003", "vllm", 1), ("EPYC 7003", "llama.cpp", 0)])
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_ranks_on_processors_lose_time_in_their_sockets(
    dense: ModelShape, name: str, engine: str, times: int, tensor: int, pipeline: int
) -> None:
    calls = {"decode_link_call": 64 * (tensor - 1), "decode_link_hop": pipeline - 1}
    split = deploy(dense, machine(name), tensor=tensor, pipeline=pipeline, over=ETHERNET, engine=engine)
    found = features_of(split, single()).decode
    assert {key: found.get(key, 0.0) for key in calls} == {key: times * count for key, count in calls.items()}
    assert not calls.keys() & features_of(deploy(dense, tensor=tensor, pipeline=pipeline), single()).decode.keys()


def test_a_full_cache_makes_requests_wait(dense: ModelShape) -> None:
    load = Load(concurrency=64, prompt_tokens=1024, output_tokens=256)
    free, full = (predict(deploy(dense), load, Calibration(), max_sequences=room) for room in (None, 16.0))
    assert full.running == 16
    assert full.ttft_s.value > 2 * free.ttft_s.value
    assert full.itl_s.value < free.itl_s.value
