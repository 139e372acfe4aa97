"""Tests that names as publishers write them lead to the catalog's model in the quantization that they mention."""

from __future__ import annotations

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.quantized_names import named_model, quantized_name
from longboat.catalog.read_model import read_model
from longboat.core.errors import UserInputError

LIBRARY = built_in_library()


@pytest.mark.parametrize(
    ("name", "base", "quantization"),
    [
        ("Qwen3-32B-AWQ", "Qwen3-32B", "awq"),
        ("Qwen/Qwen3-32B-AWQ", "Qwen3-32B", "awq"),
        ("qwen3-32b_awq", "Qwen3-32B", "awq"),
        ("Qwen3-235B-A22B-GPTQ-Int4", "Qwen3-235B-A22B", "gptq"),
        ("Qwen3-8B-GPTQ-Int8", "Qwen3-8B", "gptq-int8"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "Qwen3-30B-A3B", "fp8"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "Llama-3.1-70B", "fp8"),
        ("nvidia/Llama-3.1-405B-Instruct-NVFP4", "Llama-3.1-405B", "nvfp4"),
        ("nvidia/DeepSeek-R1-0528-FP4", "DeepSeek-R1", "nvfp4"),
        ("Llama-3.1-8B-MXFP4", "Llama-3.1-8B", "mxfp4"),
        ("bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M", "Llama-3.1-70B", "q4_k_m"),
        ("Qwen3-32B-Q5_K_M.gguf", "Qwen3-32B", "q5_k_m"),
        ("Qwen3-8B-Q8_0-GGUF", "Qwen3-8B", "q8_0"),
        ("unsloth/Qwen3-14B-UD-Q4_K_XL", "Qwen3-14B", "q4_k_m"),
        ("Phi-4-IQ3_XXS", "Phi-4", "iq3_xxs"),
        ("unsloth/Llama-3.1-8B-Instruct-bnb-4bit", "Llama-3.1-8B", "bitsandbytes"),
        ("RedHatAI/Qwen2.5-72B-Instruct-quantized.w4a16", "Qwen2.5-72B", "gptq"),
        ("mlx-community/Qwen3-235B-A22B-8bit", "Qwen3-235B-A22B", "mlx-8bit"),
        ("Mixtral-8x7B-Instruct-v0.1-AWQ", "Mixtral-8x7B", "awq"),
        ("gemma-3-27b-it-Q4_0", "Gemma-3-27B", "q4_0"),
    ],
)
def test_a_quantization_in_a_name_is_counted_and_marked(name: str, base: str, quantization: str) -> None:
    shape = read_model(name, LIBRARY)
    assert shape.name == base
    assert shape.weight_bytes == requantized(shape_of_entry(LIBRARY.models[base]), quantization).weight_bytes
    assert any("none of its files was read" in reason for reason in shape.estimate)


@pytest.mark.parametrize("name", ["gpt-oss-120b-MXFP4", "DeepSeek-V3-FP8", "Qwen3-8B-BF16", "Qwen3-8B"])
def test_what_is_published_so_is_no_estimate(name: str) -> None:
    assert named_model(name, LIBRARY).estimate == ()


@pytest.mark.parametrize(("name", "near"), [("Qwen3-33B-AWQ", "Qwen3-32B"), ("Lama-3.1-8B-Q4_K_M", "Llama-3.1-8B")])
def test_an_unknown_name_lists_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UserInputError, match="unknown model") as error:
        read_model(name, LIBRARY)
    assert near in error.value.hint
    assert "--quantization" in error.value.hint


@pytest.mark.parametrize("name", ["Qwen3-32B", "AWQ", "-awq", "", "GGUF", "Q4_K_M"])
def test_names_without_a_model_and_a_quantization_tell_nothing(name: str) -> None:
    told = quantized_name(name)
    assert told is None or told.base in ("q4", "q4-k")
