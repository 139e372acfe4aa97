"""Reads common decoders: attention of any kind, then a dense or sparse feed-forward network.

Each layer follows from the fields that the config has, so that models of unknown name are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from longboat.catalog.families.attention import (
    HEAD_FIELDS,
    KV_HEAD_FIELDS,
    grouped_attention,
    heads_of,
    latent_attention,
    with_indexer,
)
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
FULL_KINDS = ("full_attention", "attention", "global_attention", "deepseek_sparse_attention", "indexed_attention")
# Families whose queries, keys and values have biases, without a field for it in the config.
ALWAYS_BIASED = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl")
QK_NORM_TYPES = ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_5", "hunyuan", "afmoe")
# Families whose attention has a gate for its output, as wide as the queries.
GATED_ATTENTION = ("qwen3_next", "qwen3_5", "afmoe")
# Fields that some publishers write as a list, one number for each layer.
PER_LAYER = (
    *("intermediate_size", "moe_intermediate_size", "num_experts", "moe_topk", "num_shared_expert"),
    *("num_experts_per_tok", "num_attention_heads", "num_key_value_heads"),
)
# Period of the layers that see all tokens, where the config has a window and neither a list nor a pattern.
PERIODS = {"cohere2": 4, "cohere2_moe": 4, "olmo3": 4, "exaone4": 4, "cwm": 4, "afmoe": 4, "gemma2": 2, "vaultgemma": 2}
# Families in which a window without a list of layers covers every layer; vLLM and transformers agree.
SLIDING = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "phi4mm", "ministral3", "granite_swa")
WIDTHS = (
    *("dense_intermediate_size", "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "dim_ff"),
    "ff_intermediate_size",
)
HIDDEN = ("hidden_size", "n_embd", "d_model")
SPARSE_NAMES = {"mixtral": "block_sparse_moe", "minimax_m2": "block_sparse_moe", "minimax_m3": "block_sparse_moe"}


def read_decoder(fields: Fields) -> Stack:
    """Read all layers, each from the fields that concern it."""
    hidden = fields.need(*HIDDEN)
    kinds = layer_kinds(fields)
    layers = []
    for index, kind in enumerate(kinds):
        own = fields.at(index, PER_LAYER)
        layers.append(join(read_mixer(own, hidden, index, kind), read_feed_forward(own, hidden, index), 2 * hidden))
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
    return (kinds + tuple(_kind_by_window(fields, index) for index in range(len(kinds), num_layers)))[:num_layers]


def _uses_window(fields: Fields) -> bool:
    return fields.flag("use_sliding_window", not fields.word("model_type").startswith("qwen"))


def _kind_by_window(fields: Fields, index: int) -> str:
    """Return whether a layer slides, in a model whose config lists no kinds of layers."""
    if not fields.count("sliding_window") or not _uses_window(fields):
        return "full_attention"
    if letters := fields.word("sliding_window_pattern"):
        return "sliding_attention" if letters[index % len(letters)] == "L" else "full_attention"
    kind = fields.word("model_type")
    if period := fields.count("sliding_window_pattern", "_sliding_window_pattern", default=PERIODS.get(kind, 0)):
        return "full_attention" if (index + 1) % period == 0 else "sliding_attention"
    if fields.flag("use_sliding_window") and "max_window_layers" in fields:
        return "sliding_attention" if index >= fields.number("max_window_layers") else "full_attention"
    return "sliding_attention" if kind in SLIDING or fields.flag("use_sliding_window") else "full_attention"


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
        out_gate=fields.flag("attn_output_gate") or model_type.startswith(GATED_ATTENTION),
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
        width = fields.count(*WIDTHS, default=4 * hidden)
        width = width // 2 if fields.word("model_type") == "qwen" else width  # Qwen 1 counts gate and up together
        return dense(hidden, width, bias=fields.flag("mlp_bias"))
    model_type = fields.word("model_type")
    return experts(
        hidden,
        fields.count("moe_intermediate_size", "expert_intermediate_size", "intermediate_size"),
        num_experts(fields),
        fields.count(
            *("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k"),
            default=1,
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
    number = fields.count("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
    return whole or number * fields.count("moe_intermediate_size", "intermediate_size")


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
    if not is_sparse(fields, 0) and not fields.at(0, PER_LAYER).count(*WIDTHS):
        doubts.append("config.json names no width of the feed-forward network: counted as 4 times hidden_size")
    doubts += _odd_heads(fields)
    if "full_attention" in kinds and not fields.words("layer_types") and set(kinds) == {"full_attention"}:
        doubts += _unused_window(fields)
    return tuple(doubts)


def _odd_heads(fields: Fields) -> list[str]:
    """Return why the numbers of heads cannot be as the config says."""
    heads, kv_heads, hidden = fields.count(*HEAD_FIELDS), fields.count(*KV_HEAD_FIELDS), fields.count(*HIDDEN)
    if not heads or fields.count("kv_lora_rank"):
        return []
    doubts = []
    if hidden % heads and not fields.count("head_dim", "attention_head_dim", "kv_channels"):
        doubts.append(f"hidden_size {hidden} is not a multiple of {heads} heads, and config.json has no head_dim")
    if kv_heads and heads % kv_heads:
        doubts.append(f"{heads} attention heads are not a multiple of {kv_heads} key-value heads")
    return doubts


def _unused_window(fields: Fields) -> list[str]:
    window = fields.count("sliding_window", "attention_chunk_size", "window_size")
    longest = fields.count("max_position_embeddings")
    if not window or not _uses_window(fields) or window >= longest > 0:
        return []
    return [f"config.json has a window of {window} tokens and does not say in which layers: all are counted as full"]
