"""Tests of the catalog's models: parameters as published, caches as the published formulas give them."""

from __future__ import annotations

import pytest

from catalog.shape_builders import kv_bytes_of, kv_fixed_bytes, params_of
from longboat.catalog.entries import ModelEntry
from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import config_of, shape_of_entry
from longboat.catalog.shape.model_shape import ModelShape

MODELS = built_in_library().models
PUBLISHED = [entry for entry in MODELS.values() if entry.published_params]
ACTIVE = [entry for entry in MODELS.values() if entry.published_active_params]
# Published figures that are rounded more coarsely than half a percent.
ROUNDED = {"Qwen3-0.6B": 0.008, "Qwen3.5-35B-A3B": 0.0143}
# Models whose config.json leaves something open.
DOUBTFUL = ("Kimi-K3", "MiniMax-M3")


def shape(name: str) -> ModelShape:
    return shape_of_entry(MODELS[name])


@pytest.mark.parametrize("entry", MODELS.values(), ids=lambda entry: entry.name)
def test_every_model_is_counted_without_doubt(entry: ModelEntry) -> None:
    assert bool(shape_of_entry(entry).estimate) == (entry.name in DOUBTFUL)


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_parameters_are_those_published(entry: ModelEntry) -> None:
    counted = shape_of_entry(entry)
    params = counted.num_params + (params_of(counted, "vision") if entry.published_with_vision else 0)
    assert params == pytest.approx(entry.published_params, rel=ROUNDED.get(entry.name, 0.005))


@pytest.mark.parametrize("entry", ACTIVE, ids=lambda entry: entry.name)
def test_active_parameters_are_those_published(entry: ModelEntry) -> None:
    """Some publishers count the embedding and the head, some do not; most round to billions."""
    counted = shape_of_entry(entry)
    active = counted.num_active_params
    embedding, head = params_of(counted, "embedding"), params_of(counted, "head")
    digits = len(str(entry.published_active_params).rstrip("0"))
    unit = 10 ** (len(str(entry.published_active_params)) - digits)
    allowed = max(0.005 * entry.published_active_params, unit / 2)
    near = min(
        abs(entry.published_active_params - count) for count in (active, active - embedding, active - embedding - head)
    )
    assert near <= allowed


# Parameters of the modules that transformers 5.19 makes from the same config: of the language model, and of the tower.
# Its buffers (biases that routers choose by) are in the files, and counted here, but are no parameters there.
MODULES = {
    "Qwen3-8B": (8_190_735_360, 0),
    "Qwen3-VL-8B": (8_190_735_360, 576_388_336),
    "Qwen3-VL-30B-A3B": (30_532_122_624, 538_631_408),
    "Qwen3.5-27B": (26_895_998_464, 0),
    "Qwen3.5-35B-A3B": (34_660_610_688, 0),
    "Qwen3-Next-80B-A3B": (79_674_391_296, 0),
    "Qwen2.5-7B": (7_615_616_512, 0),
    "gpt-oss-20b": (20_914_757_184, 0),
    "gpt-oss-120b": (116_829_156_672, 0),
    "Gemma-3-27B": (27_009_346_304, 0),
    "Gemma-4-26B-A4B": (25_233_141_760, 572_792_112),
    "Gemma-4-31B": (30_697_345_280, 575_741_232),
    "Llama-4-Scout": (107_769_861_120, 0),
    "Llama-4-Maverick": (400_711_848_960, 0),
    "Mixtral-8x22B": (140_620_634_112, 0),
    "Mistral-Small-24B": (23_572_403_200, 0),
    "Phi-4": (14_659_507_200, 0),
    "DeepSeek-V3": (671_026_404_352, 0),
    "DeepSeek-V3.2": (671_877_929_216, 0),
    "DeepSeek-V4-Flash": (284_332_230_231, 0),
    "DeepSeek-V4-Pro": (1_572_997_179_491, 0),
    "Kimi-K2": (1_026_408_209_408, 0),
    "GLM-4.5": (352_797_814_784, 0),
    "GLM-4.5-Air": (106_852_245_504, 0),
    "GLM-5": (743_911_199_232, 0),
    "GLM-5.2": (743_377_000_704, 0),
    "MiniMax-M2.5": (228_689_748_992, 0),
    "MiMo-V2-Flash": (308_778_768_832, 0),
    "Nemotron-3-Nano-30B-A3B": (31_577_937_344, 0),
    "Nemotron-3-Super-120B-A12B": (120_668_687_360, 0),
    "Nemotron-3-Ultra-550B-A55B": (549_308_968_960, 0),
    "Nemotron-H-56B": (56_324_350_464, 0),
}


@pytest.mark.parametrize("name", MODULES)
def test_parameters_are_those_of_the_modules(name: str) -> None:
    language, tower = MODULES[name]
    counted = shape(name)
    assert counted.num_params == pytest.approx(language, rel=1e-6)
    assert not tower or params_of(counted, "vision") == tower


# name → bytes a token in bf16, and 10^6 bytes that do not grow
CACHES = {
    "Llama-3.1-8B": (131_072, 0),
    "Llama-3.1-70B": (327_680, 0),
    "Llama-3.1-405B": (516_096, 0),
    "Qwen3-8B": (147_456, 0),
    "Qwen3-14B": (163_840, 0),
    "Qwen3-32B": (262_144, 0),
    "Qwen3-30B-A3B": (98_304, 0),
    "Qwen3-235B-A22B": (192_512, 0),
    "Mixtral-8x22B": (229_376, 0),
    "GLM-4.5": (376_832, 0),
    "GLM-4.5-Air": (188_416, 0),
    "MiniMax-M2.5": (253_952, 0),
    "gpt-oss-120b": (36_864, 4.7),
    "gpt-oss-20b": (24_576, 3.1),
    "Gemma-3-27B": (81_920, 436),
    "Gemma-4-31B": (81_920, 839),
    "Gemma-4-26B-A4B": (20_480, 210),
    "Qwen3-Next-80B-A3B": (24_576, 77),
    "Qwen3.5-35B-A3B": (20_480, 64),
    "Qwen3.5-27B": (65_536, 154),
    "Qwen3.5-122B-A10B": (24_576, 154),
    "Qwen3.5-397B-A17B": (30_720, 192),
    "Nemotron-3-Super-120B-A12B": (8_192, 170),
    "Nemotron-3-Nano-30B-A3B": (6_144, 49),
    "Kimi-K2": (70_272, 0),
    "Kimi-K2.5": (70_272, 0),
    "DeepSeek-V3": (70_272, 0),
    "GLM-5": (89_856 + 78 * 132, 0),
    "GLM-5.2": (89_856 + 21 * 132, 0),
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_are_those_of_the_published_formulas(name: str) -> None:
    per_token, fixed_mb = CACHES[name]
    counted = shape(name)
    assert counted.kv_bytes_per_token(2) == per_token
    assert round(kv_fixed_bytes(counted, 2) / 1e6, 1 if fixed_mb < 10 else None) == fixed_mb


def test_compressed_caches_follow_the_published_formula() -> None:
    """DeepSeek-V4-Flash at 1,000 tokens: 2 layers with a window, 21 that keep each 4th token, 20 each 128th."""
    window, entry, index = 128 * 512 * 2, 512 * 2, 128 + 4
    each_4th = window + 250 * (entry + index) + 2 * 4 * 2 * 512 * 4
    each_128th = window + 7 * entry + 2 * 128 * 512 * 4
    assert kv_bytes_of(shape("DeepSeek-V4-Flash"), 1000, 2) == 2 * window + 21 * each_4th + 20 * each_128th


def test_fp8_caches_take_half() -> None:
    assert shape("Llama-3.1-70B").kv_bytes_per_token(1) == 163_840


# Bytes of all safetensors files of the hub, as their index says (metadata.total_size).
FILE_BYTES = {
    "Llama-3.1-8B": 16_060_522_496,
    "Llama-3.1-70B": 141_107_412_992,
    "DeepSeek-R1": 688_586_727_753,
    "gpt-oss-120b": 65_248_815_744,
}


@pytest.mark.parametrize("name", FILE_BYTES)
def test_bytes_are_those_of_the_files(name: str) -> None:
    assert shape(name).file_bytes == pytest.approx(FILE_BYTES[name], rel=1e-3)


def test_lists_of_layers_are_written_out() -> None:
    config = config_of(MODELS["DeepSeek-V4-Flash"])
    ratios = config["compress_ratios"]
    assert isinstance(ratios, list)
    assert (len(ratios), ratios.count(4), ratios.count(128), ratios.count(0)) == (43, 21, 20, 2)
    assert ratios[:5] == [0, 0, 4, 128, 4]
