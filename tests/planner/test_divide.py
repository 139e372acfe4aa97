"""Which splits the weights of a model allow."""

from __future__ import annotations

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.memory.divide import find_obstacle, tensor_degrees
from longboat.planner.memory.split_shape import even_stages

MODELS = built_in_library().models


def shape(name: str, quantization: str = "") -> ModelShape:
    found = shape_of_entry(MODELS[name])
    return requantized(found, quantization) if quantization else found


def why(model: ModelShape, tensor: int, *, expert: int = 1) -> str:
    found = find_obstacle(model, tensor=tensor, stages=(len(model.layers),), expert=expert)
    return found.what if found else ""


@pytest.mark.parametrize(
    ("name", "quantization", "tensor", "reason"),
    [
        ("Qwen3-14B", "", 3, "40 attention heads are not divisible by tensor 3"),
        ("Phi-4", "", 4, "10 key-value heads and tensor 4 do not divide each other"),
        ("Qwen3-Next-80B-A3B", "", 3, "16 heads of a linear mixer are not divisible by tensor 3"),
        (
            "GLM-4.5-Air",
            "awq",
            8,
            "mlp.experts.down_proj: 1408 inputs / 8 ranks = 176 is not a multiple of the 128 numbers",
        ),
        (
            "Qwen3-30B-A3B",
            "fp8",
            4,
            "mlp.experts.down_proj: 768 inputs / 4 ranks = 192 is not a multiple of the 128 numbers",
        ),
        ("Qwen3-32B", "awq", 16, "25600 inputs / 16 ranks = 1600 is not a multiple of the 128 numbers"),
        ("Qwen2.5-0.5B", "", 4, "14 attention heads are not divisible by tensor 4"),
    ],
)
def test_obstacles_carry_their_numbers(name: str, quantization: str, tensor: int, reason: str) -> None:
    assert reason in why(shape(name, quantization), tensor)


@pytest.mark.parametrize(
    ("name", "quantization", "tensor"),
    [
        ("Llama-3.1-70B", "awq", 8),
        ("Qwen3-235B-A22B", "", 16),  # 4 key-value heads are copied
        ("DeepSeek-R1", "", 16),
        ("Phi-4", "", 2),
        ("Qwen3-32B", "awq", 8),
        ("Gemma-3-27B", "", 16),
        ("GLM-4.5-Air", "", 8),
        ("gpt-oss-120b", "", 8),
    ],
)
def test_splits_that_work_are_allowed(name: str, quantization: str, tensor: int) -> None:
    assert why(shape(name, quantization), tensor) == ""


def test_experts_that_are_not_cut_need_no_whole_groups() -> None:
    assert why(shape("Qwen3-30B-A3B", "fp8"), 4)
    assert why(shape("Qwen3-30B-A3B", "fp8"), 4, expert=4) == ""


def test_hint_names_the_nearest_degrees_that_work() -> None:
    below_and_above = find_obstacle(shape("Qwen3-14B"), tensor=3, stages=(40,))
    assert below_and_above is not None
    assert below_and_above.hint == "tensor 2 or 4 works"
    found = find_obstacle(shape("Phi-4"), tensor=4, stages=(40,))
    assert found is not None
    assert found.hint == "tensor 2 works"
    assert tensor_degrees(shape("Phi-4")) == [1, 2]


def test_the_padded_vocabulary_is_divided_too() -> None:
    assert "the vocabulary of 100352, padded to 100352, is not divisible by tensor 5" in why(shape("Phi-4"), 5)


def test_stages_must_make_all_layers() -> None:
    found = find_obstacle(shape("Qwen3-32B"), tensor=1, stages=(40, 20))
    assert found is not None
    assert "do not make 64 layers" in found.what


def test_engines_that_divide_layers_only_refuse_tensors() -> None:
    found = find_obstacle(shape("Qwen3-32B"), tensor=2, stages=(64,), layers_only=True)
    assert found is not None
    assert "2 stages" in found.hint


@pytest.mark.parametrize(
    ("layers", "pipeline", "stages"),
    [(64, 2, (32, 32)), (61, 2, (31, 30)), (61, 4, (15, 15, 16, 15)), (62, 4, (15, 16, 16, 15)), (5, 5, (1,) * 5)],
)
def test_even_stages_are_those_of_vllm(layers: int, pipeline: int, stages: tuple[int, ...]) -> None:
    assert even_stages(layers, pipeline) == stages
