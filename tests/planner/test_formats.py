"""A format that an engine does not compute is counted in its nearest, and said."""

from __future__ import annotations

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.planner.memory.formats import as_computed, computes

LIBRARY = built_in_library()


@pytest.mark.parametrize(
    ("engine", "quantization", "computed"),
    [
        ("llama.cpp", "awq", "q4_k_m"),
        ("llama.cpp", "fp8", "q8_0"),
        ("llama.cpp", "nvfp4", "q4_k_m"),
        ("llama.cpp", "mxfp4", "mxfp4"),
        ("llama.cpp", "q5_k_m", "q5_k_m"),
        ("vLLM", "mlx-4bit", "awq"),
        ("vLLM", "mlx-8bit", "fp8"),
        ("vLLM", "gptq-int8", "gptq-int8"),
        ("SGLang", "bitsandbytes", "bitsandbytes"),
        ("vLLM", "bf16", ""),
    ],
)
def test_what_an_engine_does_not_compute_is_counted_in_its_nearest_format(
    engine: str, quantization: str, computed: str
) -> None:
    entry = LIBRARY.engines[engine]
    stored = requantized(shape_of_entry(LIBRARY.models["Qwen3-8B"]), quantization)
    counted = as_computed(stored, entry)
    assert counted.quantization == computed
    assert computes(entry, counted.quantization)
    said = [reason for reason in counted.estimate if f"computes no {quantization}" in reason]
    assert bool(said) == (counted is not stored)
