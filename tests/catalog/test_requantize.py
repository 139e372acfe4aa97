"""Tests of the sizes of models in other quantizations, against published files."""

from __future__ import annotations

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import QUANTIZATIONS, requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError

MODELS = built_in_library().models


def shape(name: str) -> ModelShape:
    return shape_of_entry(MODELS[name])


# (model, quantization) → bytes of the published files
SIZES = {
    ("Llama-3.1-8B", "q4_k_m"): 4.92e9,
    ("Llama-3.1-8B", "q5_k_m"): 5.73e9,
    ("Llama-3.1-8B", "q6_k"): 6.60e9,
    ("Llama-3.1-8B", "q8_0"): 8.54e9,
    ("Llama-3.1-70B", "q4_k_m"): 42.5e9,
    ("Llama-3.1-70B", "q8_0"): 74.98e9,
    ("Llama-3.1-8B", "q2_k"): 3.18e9,
    ("Llama-3.1-8B", "q3_k_s"): 3.66e9,
    ("Llama-3.1-8B", "q3_k_m"): 4.02e9,
    ("Llama-3.1-8B", "q3_k_l"): 4.32e9,
    ("Llama-3.1-70B", "q2_k"): 26.4e9,
    ("Llama-3.1-70B", "q3_k_m"): 34.3e9,
    ("Llama-3.1-70B", "q3_k_l"): 37.1e9,
    ("Llama-3.1-8B", "awq"): 5.73e9,
    ("Llama-3.1-70B", "awq"): 39.77e9,
    ("Llama-3.1-70B", "fp8-tensor"): 72.7e9,
    ("Llama-3.1-70B", "mlx-4bit"): 39.7e9,
}


@pytest.mark.parametrize(("model", "name"), SIZES)
def test_size_is_near_that_of_published_files(model: str, name: str) -> None:
    assert requantized(shape(model), name).weight_bytes == pytest.approx(SIZES[model, name], rel=0.025)


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_parameters_and_caches_stay(name: str) -> None:
    before = shape("Qwen3-30B-A3B")
    after = requantized(before, name)
    assert (after.num_params, after.kv_bytes_per_token()) == (before.num_params, before.kv_bytes_per_token())
    assert after.weight_bytes <= before.weight_bytes * (2 if name == "fp32" else 1.001)


def test_engines_that_compute_in_float32_hold_twice_as_much() -> None:
    before = shape("Qwen3-8B")
    after = requantized(before, "fp32")
    assert (after.weight_bytes, after.dtype) == (2 * before.weight_bytes, "float32")


def test_quantized_model_goes_back_to_sixteen_bits() -> None:
    assert requantized(shape("DeepSeek-R1"), "bf16").weight_bytes > 1.9 * shape("DeepSeek-R1").weight_bytes


def test_groups_are_told_for_divisions() -> None:
    weights = {weight.name: weight for weight in requantized(shape("Qwen3-32B"), "awq").layers[0].weights}
    assert (weights["mlp.down_proj"].group, weights["mlp.down_proj"].row_group) == (128, 0)


def test_unknown_names_get_the_nearest_ones() -> None:
    with pytest.raises(UserInputError, match="q4_k_x") as caught:
        requantized(shape("Qwen3-8B"), "q4_k_x")
    assert "q4_k_" in caught.value.hint
