"""Tests that every weight is counted from a config.json: made-up ones and those of well-known models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.catalog.formats.hf_config import parse_config
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError

DENSE: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SPARSE = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}


def test_dense_model_is_counted_exactly() -> None:
    shape = shape_from_config(DENSE)
    assert shape.num_params == 596_049_920  # as in the safetensors index of Qwen3-0.6B
    assert (shape.tied, shape.estimate, shape.max_context_tokens) == (True, (), 40960)


def test_unknown_architecture_is_counted_and_marked() -> None:
    shape = shape_from_config(DENSE | {"architectures": ["NeverSeenForCausalLM"]})
    assert shape.num_params == 596_049_920
    assert "NeverSeenForCausalLM is unknown" in shape.estimate[0]


def test_fields_that_only_a_family_understands_are_named() -> None:
    shape = shape_from_config(DENSE | {"architectures": ["NeverSeenForCausalLM"], "ssm_cfg": {"d_state": 16}})
    assert "config.json has fields that were not read: ssm_cfg" in shape.estimate


def test_layers_of_an_unknown_kind_are_named() -> None:
    kinds = ["convolution", "full_attention"] * 14
    assert any("convolution" in doubt for doubt in shape_from_config(DENSE | {"layer_types": kinds}).estimate)


def test_quantization_that_only_the_name_promises_is_marked() -> None:
    assert "nvfp4" in shape_from_config(DENSE, name="acme/Boat-7B-NVFP4").estimate[0]


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"])
def test_missing_fields_are_told(field: str) -> None:
    with pytest.raises(UserInputError, match=field) as caught:
        shape_from_config({key: value for key, value in DENSE.items() if key != field})
    assert "headers" in caught.value.hint


@pytest.mark.parametrize(("text", "match"), [("{", "is not JSON"), ("[]", "not a JSON object")])
def test_text_that_is_no_config_is_refused(text: str, match: str) -> None:
    with pytest.raises(UserInputError, match=match):
        parse_config(text, "x/config.json")


def linear_params(shape: ModelShape) -> int:
    return sum(w.num_params for layer in shape.layers for w in layer.weights if w.columns > 1 and w.part != "router")


@pytest.mark.parametrize(
    ("quantization", "name", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8 + 32 / 128**2),
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 4 + 16 / 128 + 4 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "gptq", 8 + 16 / 32 + 8 / 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", 4.5),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            "bitsandbytes",
            4 + 8 / 64 + 32 / (64 * 256),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "group_size": 32, "type": "int", "symmetric": True},
                    }
                },
            },
            "compressed-tensors",
            4.5,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4", 4.5),
        ({"quant_method": "mystery", "bits": 6, "group_size": 64}, "mystery", 6 + 16 / 64 + 6 / 64),
    ],
)
def test_quantized_weights_take_their_bits(quantization: dict[str, object], name: str, bits: float) -> None:
    plain, shape = shape_from_config(DENSE), shape_from_config(DENSE | {"quantization_config": quantization})
    assert shape.quantization == name
    assert shape.num_params == plain.num_params
    assert plain.weight_bytes - shape.weight_bytes == pytest.approx(linear_params(plain) * (16 - bits) / 8, rel=1e-6)
    assert bool(shape.estimate) == (name == "mystery")


def test_modules_not_to_convert_stay_as_they_are() -> None:
    quantization = {
        "quant_method": "fp8",
        "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn*", "re:.*layers\\.1\\.mlp.*", "down_proj"],
    }
    shape = shape_from_config(DENSE | {"quantization_config": quantization})
    bits = [{weight.name: weight.bits for weight in layer.weights} for layer in shape.layers]
    assert (bits[0]["self_attn.q_proj"], bits[0]["mlp.up_proj"], bits[0]["mlp.down_proj"]) == (16, 8, 16)
    assert (bits[1]["self_attn.q_proj"], bits[1]["mlp.up_proj"]) == (8, 16)
    assert (bits[10]["self_attn.q_proj"], bits[10]["mlp.up_proj"]) == (8, 8)


def test_mxfp4_concerns_experts_only() -> None:
    shape = shape_from_config(SPARSE | {"quantization_config": {"quant_method": "mxfp4"}})
    assert {weight.bits for weight in shape.layers[0].weights if weight.part == "experts"} == {4.25}
    assert {weight.bits for weight in shape.layers[0].weights if weight.part != "experts"} == {16}


def test_mlx_takes_the_ends_too() -> None:
    shape = shape_from_config(DENSE | {"quantization": {"bits": 4, "group_size": 64}})
    assert shape.embedding is not None
    assert (shape.embedding.bits, shape.quantization) == (4.5, "mlx")


def test_table_of_layers_gives_each_its_form() -> None:
    table = {"model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4"}, "lm_head": {"quant_algo": "FP8"}}
    beside = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": table}}
    shape = shape_from_config(DENSE | {"tie_word_embeddings": False}, quantization=beside)
    first = {weight.name: weight.bits for weight in shape.layers[0].weights}
    assert (first["mlp.down_proj"], first["mlp.up_proj"]) == (4.5, 16)
    assert shape.head is not None
    assert shape.head.bits == 8


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SPARSE, "bits"]), inner, max_size=4),
)
FIELDS = (
    *SPARSE,
    "layer_types",
    "kv_lora_rank",
    "quantization_config",
    "moe_layer_freq",
    "sliding_window",
    "text_config",
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.booleans())
def test_any_config_is_counted_or_refused(changes: dict[str, object], whole: bool) -> None:
    try:
        shape = shape_from_config((SPARSE if whole else {}) | changes)
    except UserInputError as error:
        assert error.hint
        return
    assert shape.num_params > 0
    assert shape.file_bytes >= shape.weight_bytes > 0


def real_configs() -> list[Path]:
    folder = os.environ.get("LONGBOAT_TEST_DATA")
    found = sorted(Path(folder, "model_configs").glob("*_config.json")) if folder else []
    return [path for path in found if not path.name.endswith("_hf_quant_config.json")]


REAL = real_configs()
needs_data = pytest.mark.skipif(not REAL, reason="LONGBOAT_TEST_DATA names no folder with model_configs/*_config.json")
# Models whose config.json leaves something open, which the reader reports.
DOUBTFUL = ("Kimi-K3", "MiniMax-M3", "Llama-4", "Lightning-30B-A3B-NVFP4", "Nemotron-3-Super", "Nemotron-3-Ultra")


def read_real(path: Path) -> ModelShape:
    beside = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
    quantization = json.loads(beside.read_text()) if beside.exists() else None
    name = path.name.removesuffix("_config.json").replace("--", "/")
    return shape_from_config(parse_config(path.read_text(), str(path)), name=name, quantization=quantization)


@needs_data
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.removesuffix("_config.json"))
def test_real_config_is_counted(path: Path) -> None:
    shape = read_real(path)
    assert 500_000_000 < shape.num_active_params <= shape.num_params < 4_000_000_000_000
    all_params = sum(weight.num_params for weight in shape.weights())
    assert 0.5 * shape.num_params < shape.weight_bytes <= 2.05 * all_params
    assert len({id(layer) for layer in shape.layers}) == len(set(shape.layers)) <= 10
    assert not shape.estimate or any(word in path.name for word in DOUBTFUL)


# Bytes of all safetensors files, as the index of each publisher says (metadata.total_size).
FILE_BYTES = {
    "deepseek-ai--DeepSeek-R1": 688_586_727_753,
    "meta-llama--Meta-Llama-3.1-8B": 16_060_522_496,
    "meta-llama--Meta-Llama-3.1-70B": 141_107_412_992,
    "openai--gpt-oss-120b": 65_248_815_744,
    "Qwen--Qwen3-235B-A22B": 470_187_269_120,
}


@needs_data
@pytest.mark.parametrize("name", FILE_BYTES)
def test_bytes_are_those_of_the_files(name: str) -> None:
    path = next((path for path in REAL if path.name == f"{name}_config.json"), None)
    if path is None:
        pytest.skip(f"LONGBOAT_TEST_DATA has no config of {name}")
    assert read_real(path).file_bytes == pytest.approx(FILE_BYTES[name], rel=1e-3)


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32} | {
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"num_attention_heads": 33}, "hidden_size 4096 is not a multiple of 33 heads"),
        ({"num_key_value_heads": 64}, "32 attention heads are not a multiple of 64 key-value heads"),
        ({"num_key_value_heads": 5}, "32 attention heads are not a multiple of 5 key-value heads"),
    ],
)
def test_heads_that_cannot_be_so_are_said(wrong: dict[str, object], reason: str) -> None:
    assert any(reason in doubt for doubt in shape_from_config(LLAMA | wrong, name="odd").estimate)
    assert not shape_from_config(LLAMA, name="usual").estimate


@pytest.mark.parametrize("value", ["4096", -4096, True, 4096.5])
def test_a_width_that_is_no_number_is_refused_with_its_value(value: object) -> None:
    with pytest.raises(UserInputError) as refused:
        shape_from_config(LLAMA | {"hidden_size": value}, name="odd")
    assert str(value) in refused.value.message
    assert "hidden_size" in refused.value.message
