"""Tests of parameters and cache bytes against transformers' own classes: ``tools/model_truth.py`` makes the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from longboat.catalog.families.checked import CHECKED
from longboat.catalog.families.registry import TOWERS
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.core.errors import UserInputError

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "model_truth.json").read_text())
TOLERANCE = 0.01
OTHER_KINDS = {
    "bert": "encoder",
    "modernbert": "encoder",
    "xlm-roberta": "encoder",
    "t5": "encoder-decoder",
    "bart": "encoder-decoder",
    "whisper": "encoder-decoder",
    "rwkv": "recurrent",
    "xlstm": "recurrent",
}


def kind_of(row: dict[str, Any]) -> str:
    return str(row["config"]["model_type"])


def test_the_table_covers_most_families() -> None:
    assert len(ROWS) >= 120
    assert len({kind_of(row) for row in ROWS}) >= 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_config_is_counted_exactly_or_not_silently(row: dict[str, Any]) -> None:
    try:
        shape = shape_from_config(row["config"])
    except UserInputError as error:
        assert kind_of(row) in error.message  # it says which kind of model is refused
        return
    counted = (shape.num_loaded_params, shape.kv_bytes_per_token(), shape.window_bytes_per_token())
    true = (row["parameters"], row["kv_bytes_per_token"], row["window_kv_bytes_per_token"])
    exact = all(abs(one - other) <= TOLERANCE * other for one, other in zip(counted, true, strict=True))
    assert exact or shape.estimate, (counted, true)
    if row["config"]["architectures"][0] in {*CHECKED, *TOWERS}:
        assert exact
        assert not any("is unknown" in reason for reason in shape.estimate)


@pytest.mark.parametrize("row", [row for row in ROWS if kind_of(row) in OTHER_KINDS], ids=lambda row: row["name"])
def test_models_that_are_no_decoders_are_named_as_what_they_are(row: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match=OTHER_KINDS[kind_of(row)]):
        shape_from_config(row["config"])


CODE_OF_THEIR_OWN: list[tuple[str, float, int, dict[str, Any]]] = [
    (
        *("QWenLMHeadModel", 7.721e9, 524_288),
        {"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_attention_heads": 32}
        | {"num_hidden_layers": 32, "kv_channels": 128, "vocab_size": 151936, "tie_word_embeddings": False},
    ),
    (
        *("MiniCPMForCausalLM", 2.725e9, 368_640),
        {"model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "num_attention_heads": 36}
        | {"num_key_value_heads": 36, "num_hidden_layers": 40, "vocab_size": 122753},
    ),
    (
        *("ChatGLMModel", 6.244e9, 28_672),
        {"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_attention_heads": 32}
        | {"num_layers": 28, "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2}
        | {"padded_vocab_size": 65024, "tie_word_embeddings": False},
    ),
    (
        *("MiniMaxText01ForCausalLM", 456.09e9, 40_960),
        {"model_type": "minimax_text_01", "hidden_size": 6144, "intermediate_size": 9216, "num_attention_heads": 64}
        | {"num_key_value_heads": 8, "num_hidden_layers": 80, "num_local_experts": 32, "num_experts_per_tok": 2}
        | {"head_dim": 128, "vocab_size": 200064, "attn_type_list": [int(index % 8 == 7) for index in range(80)]},
    ),
]
"""Classes, published parameters, cache bytes and configs of models whose repositories hold their code."""


@pytest.mark.parametrize("case", CODE_OF_THEIR_OWN, ids=lambda case: case[0])
def test_models_with_code_of_their_own_are_counted_and_marked(case: tuple[str, float, int, dict[str, Any]]) -> None:
    architecture, parameters, kv_bytes, config = case
    shape = shape_from_config({"architectures": [architecture], **config})
    assert shape.num_loaded_params == pytest.approx(parameters, rel=TOLERANCE)
    assert shape.kv_bytes_per_token() == kv_bytes
    assert f"architecture {architecture} is unknown" in shape.estimate[0]


def test_fields_that_nothing_read_are_named() -> None:
    config = next(row for row in ROWS if row["name"] == "meta-llama/Llama-2-7b-hf")["config"]
    assert shape_from_config(config).estimate == ()
    assert "num_experts_beside" in shape_from_config(config | {"num_experts_beside": 8}).estimate[0]
