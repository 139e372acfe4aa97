"""Reads common decoders: attention of any kind, then a dense or sparse feed-forward network.

Each layer follows from the fields that the config has, so that models of unknown name are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from longboat.catalog.families.attention import grouped_attention, heads_of, latent_attention, with_indexer
from longboat.catalog.families.feed_forward import dense, experts
from longboat.catalog.families.mixers import gated_delta, mamba
from longboat.catalog.families.parts import FeedForward, Mixer, Stack, as_prediction_head, join
from longboat.catalog.families.sparsity import is_sparse, num_experts
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.model_shape import Layer
from longboat.catalog.shape.weight import Weight

__all__ = ("read_decoder", "read_feed_forward", "shared_width")

LINEAR_KINDS = ("linear_attention",)
MAMBA_KINDS = ("mamba", "mamba2")
WINDOW_KINDS = ("sliding_attention", "chunked_attention")
FULL_KINDS = ("full_attention", "attention", "global_attention", "deepseek_sparse_attention")
# Families whose queries, keys and values have biases, without a field for it in the config.
ALWAYS_BIASED = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl")
QK_NORM_TYPES = ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_5", "hunyuan")
SPARSE_NAMES = {"mixtral": "block_sparse_moe", "minimax_m2": "block_sparse_moe", "minimax_m3": "block_sparse_moe"}


def read_decoder(fields: Fields) -> Stack:
    """Read all layers, each from the fields that concern it."""
    hidden = fields.need("hidden_size", "n_embd", "d_model")
    kinds = layer_kinds(fields)
    layers = [
        join(read_mixer(fields, hidden, index, kind), read_feed_forward(fields, hidden, index), 2 * hidden)
        for index, kind in enumerate(kinds)
    ]
    return Stack(layers=tuple(layers), mtp=read_mtp(fields, layers), estimate=_doubts(fields, kinds))


def layer_kinds(fields: Fields) -> tuple[str, ...]:
    """Return the kind of each layer; ``full_attention`` for all where the config does not distinguish them."""
    kinds = fields.words("layer_types") or fields.words("layers_block_type")
    num_layers = fields.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", default=len(kinds))
    if not num_layers:
        fields.need("num_hidden_layers")
    if interval := fields.count("full_attention_interval") if not kinds else 0:
        return tuple(
            "full_attention" if (index + 1) % interval == 0 else "linear_attention" for index in range(num_layers)
        )
    whole = "sliding_attention" if _slides_everywhere(fields) else "full_attention"
    return (kinds + (whole,) * num_layers)[:num_layers]


def _slides_everywhere(fields: Fields) -> bool:
    """Return whether a sliding window without a list of layers covers every layer (Mistral 7B 0.1), as in vLLM."""
    return bool(fields.count("sliding_window")) and fields.flag(
        "use_sliding_window", "use_sliding_window" not in fields
    )


def read_mixer(fields: Fields, hidden: int, index: int, kind: str) -> Mixer:
    """Read the attention of one layer, or what replaces it."""
    if kind in LINEAR_KINDS and "linear_num_key_heads" in fields:
        return gated_delta(fields, hidden)
    if kind in MAMBA_KINDS:
        return mamba(fields, hidden)
    if "kv_lora_rank" in fields:
        mixer = latent_attention(fields, hidden)
        return with_indexer(mixer, fields, hidden) if _has_indexer(fields, index) else _chosen_by_others(mixer, fields)
    window = fields.count("sliding_window", "attention_chunk_size") if kind in WINDOW_KINDS else 0
    heads, model_type = heads_of(fields), fields.word("model_type")
    bias = fields.flag("attention_bias") or fields.flag("qkv_bias") or model_type in ALWAYS_BIASED
    return grouped_attention(
        hidden,
        heads,
        window_tokens=window,
        bias=bias,
        out_gate=fields.flag("attn_output_gate") or model_type == "qwen3_next",
        norm_params=_norm_params(fields, heads.num_heads + heads.num_kv_heads, heads.key_dim),
    )


def _has_indexer(fields: Fields, index: int) -> bool:
    if "index_head_dim" not in fields:
        return False
    kinds = fields.words("indexer_types")
    return kinds[index] == "full" if index < len(kinds) else True


def _chosen_by_others(mixer: Mixer, fields: Fields) -> Mixer:
    """Make a layer without its own indexer read the tokens that an earlier layer's indexer chose (GLM-5.2)."""
    return replace(mixer, cache=replace(mixer.cache, top_k_tokens=fields.count("index_topk")))


def _norm_params(fields: Fields, all_heads: int, dim: int) -> int:
    model_type = fields.word("model_type")
    if fields.word("qk_norm_type") == "per_layer":
        return all_heads * dim
    normed = fields.flag("use_qk_norm") or model_type.startswith(QK_NORM_TYPES)
    return 2 * dim if normed else 0


def read_feed_forward(fields: Fields, hidden: int, index: int) -> FeedForward:
    """Read the experts of a sparse layer, or the network of a dense one."""
    if not is_sparse(fields, index):
        width = fields.count("dense_intermediate_size", "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
        return dense(hidden, width, bias=fields.flag("mlp_bias"))
    model_type = fields.word("model_type")
    return experts(
        hidden,
        fields.count("moe_intermediate_size", "expert_intermediate_size", "intermediate_size"),
        num_experts(fields),
        fields.count(
            "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", default=1
        ),
        shared_width=shared_width(fields),
        name=SPARSE_NAMES.get(model_type, "mlp"),
        router_bias=fields.word("topk_method") == "noaux_tc" or fields.flag("use_routing_bias"),
        shared_gate="shared_expert_intermediate_size" in fields,
    )


def shared_width(fields: Fields) -> int:
    """Return the inner width of all shared experts of a layer together; 0 where there are none."""
    whole = fields.count(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    )
    return whole or fields.count("n_shared_experts", "num_shared_experts") * fields.count("moe_intermediate_size")


def read_mtp(fields: Fields, layers: Iterable[Layer]) -> tuple[Weight, ...]:
    """Read the modules for multi-token prediction: each is one layer like the last that attends to all tokens."""
    count = fields.count("num_nextn_predict_layers", "mtp_num_hidden_layers")
    attending = [layer for layer in layers if layer.cache.kind in ("full", "latent")]
    if not count or not attending:
        return ()
    own_ends = "num_nextn_predict_layers" in fields and is_sparse(fields, 10_000)
    return as_prediction_head(fields, attending[-1:], own_ends=own_ends, num_modules=count)


def _doubts(fields: Fields, kinds: tuple[str, ...]) -> tuple[str, ...]:
    known = {*LINEAR_KINDS, *MAMBA_KINDS, *WINDOW_KINDS, *FULL_KINDS}
    strange = sorted({kind for kind in kinds if kind not in known})
    doubts = [f"layers of kind {kind} are counted as full attention" for kind in strange]
    if "linear_attention" in kinds and "linear_num_key_heads" not in fields:
        doubts.append("linear attention without linear_num_key_heads is counted as full attention")
    return tuple(doubts)
