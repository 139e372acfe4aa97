"""Tests that the settings in a config.json are read: small made-up ones and those of well-known models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.catalog.formats.hf_config import facts_from_config, read_config
from longboat.catalog.formats.model_facts import ModelConfig
from longboat.core.errors import UserInputError

DENSE: dict[str, object] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "intermediate_size": 3072,
    "torch_dtype": "bfloat16",
}


def test_facts_of_a_dense_model() -> None:
    assert facts_from_config(DENSE) == ModelConfig(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        num_layers=28,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position_tokens=40960,
        intermediate_size=3072,
        dtype="bfloat16",
    )


def test_facts_of_a_multimodal_model_are_those_of_its_text_part() -> None:
    config = {"model_type": "qwen3_vl", "text_config": DENSE, "vision_config": {"num_attention_heads": 3}}
    facts = facts_from_config(config)
    assert (facts.num_heads, facts.num_layers, facts.dtype, facts.multimodal) == (16, 28, "bfloat16", True)
    assert (facts.model_type, facts.architecture) == ("qwen3_vl", "Qwen3ForCausalLM")


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        (None, 40960),
        ({"rope_type": "default"}, 40960),
        ({"type": "linear", "factor": 4.0}, 163840),
        ({"rope_type": "dynamic", "factor": 2}, 81920),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10240}, 40960),
        ({"rope_type": "llama3", "factor": 8.0}, 40960),
        (
            {"full_attention": {"rope_type": "linear", "factor": 2}, "sliding_attention": {}},
            81920,
        ),
        ({"rope_type": "linear", "factor": None}, 40960),
    ],
)
def test_longest_request_follows_rope_scaling(rope: object, tokens: int) -> None:
    assert facts_from_config(DENSE | {"rope_scaling": rope}).max_position_tokens == tokens
    assert facts_from_config(DENSE | {"rope_parameters": rope}).max_position_tokens == tokens


def test_key_value_heads_default_to_attention_heads() -> None:
    config = {key: value for key, value in DENSE.items() if key != "num_key_value_heads"}
    assert facts_from_config(config).num_kv_heads == 16


def test_key_value_heads_of_a_model_with_different_layers_are_unknown() -> None:
    assert facts_from_config(DENSE | {"num_key_value_heads": None, "block_configs": [{}]}).num_kv_heads is None


def test_head_dim_defaults_to_the_share_of_the_hidden_size() -> None:
    assert facts_from_config({"hidden_size": 4096, "num_attention_heads": 32}).head_dim == 128


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, None),
        ({"quantization_config": {"quant_method": "FP8"}}, "fp8"),
        ({"quantization_config": {}}, "unknown"),
        ({"text_config": {"compression_config": {"quant_method": "compressed-tensors"}}}, "compressed-tensors"),
    ],
)
def test_quantization_is_named(config: dict[str, object], method: str | None) -> None:
    assert facts_from_config(config).quantization == method


def test_fields_of_a_wrong_type_count_as_absent() -> None:
    facts = facts_from_config({"num_attention_heads": "16", "vocab_size": True, "hidden_size": -1, "text_config": []})
    assert facts == ModelConfig()


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", "[" * 100_000])
def test_text_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(UserInputError, match=r"models/x/config\.json"):
        read_config(text, "models/x/config.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*DENSE, "factor"]), inner, max_size=4),
)
CONFIGS = st.dictionaries(
    st.sampled_from([*DENSE, "text_config", "rope_scaling", "rope_parameters", "quantization_config"]),
    JSON,
)


@given(CONFIGS)
def test_any_config_gives_positive_counts_or_none(config: dict[str, object]) -> None:
    facts = facts_from_config(config)
    counts = (facts.num_layers, facts.num_heads, facts.num_kv_heads, facts.vocab_size, facts.max_position_tokens)
    assert all(count is None or count > 0 for count in counts)


def real_configs() -> list[Path]:
    folder = os.environ.get("LONGBOAT_TEST_DATA")
    return sorted(Path(folder, "model_configs").glob("*_config.json")) if folder else []


REAL = [path for path in real_configs() if not path.name.endswith("_hf_quant_config.json")]
needs_data = pytest.mark.skipif(not REAL, reason="LONGBOAT_TEST_DATA names no folder with model_configs/*_config.json")


@needs_data
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.removesuffix("_config.json"))
def test_real_config_tells_its_shape(path: Path) -> None:
    facts = read_config(path.read_text(), str(path))
    assert facts.architecture
    assert 4 <= (facts.num_layers or 0) <= 200
    assert 8 <= (facts.num_heads or 0) <= 256
    assert 512 <= (facts.hidden_size or 0) <= 32768
    assert 32 <= (facts.head_dim or 0) <= 1024
    assert 30_000 <= (facts.vocab_size or 0) <= 300_000
    assert 4096 <= (facts.max_position_tokens or 0) <= 20_000_000
    assert (facts.num_experts > 0) == (facts.num_experts_per_token > 0)
    if facts.num_kv_heads and not facts.uses_latent_attention:
        assert (facts.num_heads or 0) % facts.num_kv_heads == 0


# name → layers, heads, key and value heads, experts, quantization, longest request
KNOWN = {
    "Qwen--Qwen3-0.6B": (28, 16, 8, 0, None, 40960),
    "Qwen--Qwen3-VL-30B-A3B-Instruct": (48, 32, 4, 128, None, 262144),
    "deepseek-ai--DeepSeek-R1": (61, 128, 128, 256, "fp8", 163840),
    "meta-llama--Meta-Llama-3.1-8B": (32, 32, 8, 0, None, 131072),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (108, 64, 2, 512, None, 262144),
    "openai--gpt-oss-20b": (24, 64, 8, 32, "mxfp4", 131072),
    "mistralai--Mixtral-8x7B-v0.1": (32, 32, 8, 8, None, 32768),
}


@needs_data
@pytest.mark.parametrize("name", KNOWN)
def test_known_models_have_their_known_shape(name: str) -> None:
    path = next((path for path in REAL if path.name == f"{name}_config.json"), None)
    if path is None:
        pytest.skip(f"LONGBOAT_TEST_DATA has no config of {name}")
    facts = facts_from_config(json.loads(path.read_text()))
    assert KNOWN[name] == (
        facts.num_layers,
        facts.num_heads,
        facts.num_kv_heads,
        facts.num_experts,
        facts.quantization,
        facts.max_position_tokens,
    )
