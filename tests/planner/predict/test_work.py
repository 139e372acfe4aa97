from __future__ import annotations

import pytest
from predict_builders import H100, deploy, machine, shape_of

from longboat.planner.predict.kernels import kernel_class
from longboat.planner.predict.work import Pass, expected_experts, stage_work

STEP = Pass(tokens=1.0, sequences=1.0, context_tokens=1000.0, decoding=True)


def test_a_decode_step_reads_every_weight_once() -> None:
    shape = shape_of("Llama-3.1-8B")
    read_s = stage_work(deploy(shape), 0, STEP)["decode_read_weights"]
    table_bytes = shape.embedding.num_bytes if shape.embedding else 0
    assert read_s * H100.bandwidth_bytes_per_s == pytest.approx(shape.weight_bytes - table_bytes, rel=1e-3)


def test_a_decode_step_reads_the_cache_of_its_context() -> None:
    read_s = stage_work(deploy(shape_of("Llama-3.1-8B")), 0, STEP)["decode_read_cache"]
    assert read_s * H100.bandwidth_bytes_per_s == pytest.approx(131_072 * 1000)


def test_a_latent_cache_is_not_divided_by_tensor_parallelism() -> None:
    shape = shape_of("DeepSeek-V3")
    one, eight = (stage_work(deploy(shape, tensor=n), 0, STEP)["decode_read_cache"] for n in (1, 8))
    assert one == eight


def test_a_prompt_costs_two_operations_for_each_active_parameter_and_token() -> None:
    shape, tokens = shape_of("Llama-3.1-8B"), 100.0
    work = stage_work(deploy(shape), 0, Pass(tokens=tokens, sequences=1.0, context_tokens=50.0, decoding=False))
    layers = sum(layer.num_active_params for layer in shape.layers)
    head = shape.head.num_params if shape.head else 0
    assert work["prefill_multiply"] * H100.flops_16 == pytest.approx(2 * layers * tokens + 2 * head, rel=1e-3)


@pytest.mark.parametrize(("tokens", "hit"), [(1, 8), (10_000, 256)])
def test_experts_are_hit_one_by_one_until_all_are(tokens: int, hit: int) -> None:
    assert expected_experts(256, 8, tokens) == pytest.approx(hit, rel=1e-6)


def test_one_device_needs_no_links() -> None:
    assert not any("link" in name for name in stage_work(deploy(shape_of("Llama-3.1-8B")), 0, STEP))


@pytest.mark.parametrize(
    ("name", "quantization", "on", "kernel"),
    [
        ("Llama-3.1-70B", "fp8", "H100", "fp8/fp8"),
        ("DeepSeek-R1", "fp8", "B200", "fp8-block/fp4"),
        ("gpt-oss-120b", "fp4", "H100", "fp4/fp8"),
        ("Qwen3-235B-A22B", "fp4", "B200", "fp4/fp4"),
        ("Qwen3-32B", "", "A100", "16/bf16"),
        ("Qwen3-32B", "awq", "RTX 4090", "4/fp8"),
    ],
)
def test_kernels_are_told_apart_by_format_and_hardware(name: str, quantization: str, on: str, kernel: str) -> None:
    assert kernel_class(shape_of(name, quantization), machine(on)) == kernel


def test_weights_that_the_hardware_cannot_multiply_are_unpacked() -> None:
    shape = shape_of("gpt-oss-120b")
    assert "decode_unpack_experts" in stage_work(deploy(shape, machine("H100")), 0, STEP)
    assert "decode_unpack_experts" not in stage_work(deploy(shape, machine("B200")), 0, STEP)
