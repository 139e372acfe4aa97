"""Configs that list their layers in ``block_configs`` (Nemotron-NAS, Puzzle): every size counts, or is named."""

from __future__ import annotations

from typing import Any

import pytest

from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError

HIDDEN, HEADS, DIM, VOCAB = 1024, 16, 64, 1000
ATTENTION = {
    "n_heads_in_group": 4,
    "no_op": False,
    "replace_with_linear": False,
    "sparsify": None,
    "window_length": None,
}
FFN = {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False, "sparsify": None}
ENDS = 2 * VOCAB * HIDDEN + HIDDEN  # embedding, head, final norm
MLP = 3 * HIDDEN * 1792  # 2 x 2.625 x 1024 / 3, rounded up to a multiple of 256


def attention_of(kv_heads: int) -> int:
    return 2 * HIDDEN * HEADS * DIM + 2 * HIDDEN * kv_heads * DIM


def shape_of(*blocks: dict[str, Any], **more: Any) -> ModelShape:
    config = {
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "nemotron-nas",
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": len(blocks),
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "max_position_embeddings": 8192,
    }
    if blocks:
        config["block_configs"] = list(blocks)
    return shape_from_config({**config, **more})


def block(attention: dict[str, Any], ffn: dict[str, Any]) -> dict[str, Any]:
    return {"attention": {**ATTENTION, **attention}, "ffn": {**FFN, **ffn}}


@pytest.mark.parametrize(
    ("attention", "ffn", "params"),
    [
        ({}, {}, attention_of(4) + MLP + 2 * HIDDEN),
        ({"num_key_value_heads": 2}, {}, attention_of(2) + MLP + 2 * HIDDEN),
        ({}, {"ffn_mult": None, "intermediate_size": 3000}, attention_of(4) + 3 * HIDDEN * 3000 + 2 * HIDDEN),
        ({"no_op": True, "n_heads_in_group": None}, {}, MLP + HIDDEN),
        ({"replace_with_linear": True, "n_heads_in_group": None}, {}, HIDDEN * HIDDEN + MLP + 2 * HIDDEN),
        ({}, {"no_op": True, "ffn_mult": None}, attention_of(4) + HIDDEN),
        ({}, {"replace_with_linear": True}, attention_of(4) + HIDDEN * HIDDEN + 2 * HIDDEN),
    ],
)
def test_block_is_counted_by_its_own_fields(attention: dict[str, Any], ffn: dict[str, Any], params: int) -> None:
    found = shape_of(block(attention, ffn), block({}, {}))
    assert found.num_params == ENDS + params + attention_of(4) + MLP + 2 * HIDDEN
    assert found.estimate == ()


def test_biases_of_blocks_count() -> None:
    plain, biased = shape_of(block({}, {})), shape_of(block({}, {}), attention_bias=True, mlp_bias=True)
    assert biased.num_params - plain.num_params == (HEADS + 2 * 4) * DIM + HIDDEN + 2 * 1792 + HIDDEN


def test_experts_of_a_block_count() -> None:
    moe = {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "expert_intermediate_dim": 512,
        "shared_expert_intermediate_dim": 1024,
    }
    found = shape_of(block({}, {"ffn_mult": None, "moe": moe}))
    params = 8 * HIDDEN + 8 * 3 * HIDDEN * 512 + 3 * HIDDEN * 1024
    assert found.num_params == ENDS + attention_of(4) + params + 2 * HIDDEN
    assert found.layers[0].num_experts == 8


def test_state_of_a_block_counts() -> None:
    state = {"state_dim": 128, "num_heads": 32, "head_dim": 64, "num_groups": 8}
    found = shape_of(block({"n_heads_in_group": None, "mamba": state}, {}), block({}, {}))
    assert found.layers[0].cache.kind == "state"
    assert found.layers[0].cache.num_state_heads == 32
    assert found.estimate == ()


def test_fields_of_blocks_that_are_not_read_are_named() -> None:
    found = shape_of(block({"num_sink_tokens": 4, "llama4": {"a": 3}}, {"more_width": 77}), block({}, {}))
    assert found.estimate == ("block_configs have fields that were not read: num_sink_tokens, llama4, more_width",)


def test_blocks_of_another_number_than_layers_are_named() -> None:
    found = shape_of(block({}, {}), num_hidden_layers=4)
    assert found.estimate == ("config.json has 1 block_configs and num_hidden_layers 4: the former counts",)


def test_block_without_a_width_is_refused() -> None:
    """A width of 0 would be a model without feed-forward layers."""
    with pytest.raises(UserInputError, match="intermediate_size or ffn_mult"):
        shape_of(block({}, {"ffn_mult": None}))


def test_first_generation_lists_its_heads() -> None:
    found = shape_of(num_key_value_heads_per_layer=[4, 2, 1], intermediate_size=3000, model_type="deci")
    layers = sum(attention_of(count) + 3 * HIDDEN * 3000 + 2 * HIDDEN for count in (4, 2, 1))
    assert found.num_params == ENDS + layers
    assert [layer.cache.num_kv_heads for layer in found.layers] == [4, 2, 1]


def puzzle(*blocks: dict[str, Any]) -> ModelShape:
    sizes = {"mamba_num_heads": 32, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4}
    kind = {"architectures": ["NemotronHPuzzleForCausalLM"], "model_type": "nemotron_h_puzzle"}
    return shape_of(*blocks, **kind, **sizes, num_key_value_heads=4, head_dim=DIM)


def test_hybrid_blocks_have_sizes_of_their_own() -> None:
    def moe(experts: int, width: int) -> dict[str, Any]:
        return {
            "block_type": "moe",
            "n_routed_experts": experts,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": width,
            "moe_shared_expert_intermediate_size": 1024,
        }

    def params(experts: int, width: int) -> int:
        return HIDDEN * experts + experts + 2 * experts * HIDDEN * width + 2 * HIDDEN * 1024 + HIDDEN

    state = {"block_type": "mamba"}
    found = puzzle(moe(16, 512), {"block_type": "attention"}, moe(8, 256), state)
    mixer = puzzle(state).num_params - ENDS
    assert found.num_params == ENDS + params(16, 512) + attention_of(4) + HIDDEN + params(8, 256) + mixer
    assert [layer.num_experts for layer in found.layers] == [16, 0, 8, 0]
    assert found.estimate == ()


def test_hybrid_block_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UserInputError, match=r"block_type weird .* none of mamba, attention, mlp, moe"):
        puzzle({"block_type": "weird"})
