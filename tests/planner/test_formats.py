"""A format that an engine does not compute is counted in its nearest, and said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from catalog.file_builders import gguf_header
from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.read_model import read_gguf
from longboat.planner.compare.asked_formats import marked_gguf
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


@pytest.mark.parametrize("number", [0, 1, 8, 11, 12, 13, 30, 35, 39])
def test_a_gguf_file_is_counted_with_its_own_bytes_whatever_its_type(number: int, tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 512}
    tensors = [("token_embd.weight", 0, (1024, 512)), ("blk.0.ffn_up.weight", number, (8192, 512))]
    (path := tmp_path / "boat.gguf").write_bytes(gguf_header(metadata, tensors))
    stored = read_gguf(path)
    counted = as_computed(stored, LIBRARY.engines["llama.cpp"])
    assert counted.weight_bytes == stored.weight_bytes
    assert not counted.estimate


@pytest.mark.parametrize(("quantization", "nearest"), [("q5_k", "fp8"), ("q4_k", "awq"), ("tq2_0", "awq")])
def test_an_engine_that_reads_gguf_as_an_experiment_says_so_of_a_type_too(quantization: str, nearest: str) -> None:
    shape = replace(shape_of_entry(LIBRARY.models["Qwen3-8B"]), quantization=quantization)
    (reason,) = marked_gguf(shape, "vllm").estimate
    assert f"--quantization {nearest}" in reason
