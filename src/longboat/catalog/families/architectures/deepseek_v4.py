"""Reads DeepSeek-V4: one key-value vector of 512 numbers per token, in a window and compressed behind it.

Weights as in the publisher's reference code; the cache is a ``Cache`` of kind compressed.
"""

from __future__ import annotations

from longboat.catalog.families.feed_forward import experts
from longboat.catalog.families.parts import Mixer, Stack, as_prediction_head, join, linear, vector
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.cache import Cache
from longboat.catalog.shape.model_shape import Layer
from longboat.catalog.shape.weight import Weight

__all__ = ("read_deepseek_v4",)

# Groups of this ratio overlap: they are compressed with twice the width, and have an indexer.
OVERLAPPING_RATIO = 4


def read_deepseek_v4(fields: Fields) -> Stack:
    """Read layers by ``compress_ratios``: 0 for a window only."""
    ratios = fields.numbers("compress_ratios")
    num_layers = fields.need("num_hidden_layers")
    layers = [_layer(fields, ratio) for ratio in (ratios + (0,) * num_layers)[:num_layers]]
    modules = fields.count("num_nextn_predict_layers")
    mtp = as_prediction_head(fields, [_layer(fields, 0)], num_modules=modules) if modules else ()
    streams, hidden = fields.count("hc_mult", default=1), fields.need("hidden_size")
    head = linear("hc_head_fn", "other", streams, streams * hidden)
    doubts = () if ratios else ("config.json has no compress_ratios: every layer is counted as having a window only",)
    return Stack(layers=tuple(layers), prefix="", mtp=mtp, others=head, estimate=doubts)


def _layer(fields: Fields, ratio: int) -> Layer:
    hidden, streams = fields.need("hidden_size"), fields.count("hc_mult", default=1)
    width = fields.need("moe_intermediate_size")
    moe = experts(
        hidden,
        width,
        fields.need("n_routed_experts"),
        fields.need("num_experts_per_tok"),
        shared_width=width * fields.count("n_shared_experts"),
        name="ffn",
        router_bias=True,
    )
    mixer = _mixer(fields, hidden, ratio)
    mixing = 2 * streams * (2 + streams) * streams * hidden
    return join(mixer, moe, 2 * hidden + mixing)


def _mixer(fields: Fields, hidden: int, ratio: int) -> Mixer:
    heads, dim, rank = fields.need("num_attention_heads"), fields.need("head_dim"), fields.need("q_lora_rank")
    groups, out_rank = fields.need("o_groups"), fields.need("o_lora_rank")
    weights = [
        *linear("attn.wq_a", "attention", rank, hidden),
        *linear("attn.wq_b", "attention", heads * dim, rank, "out", units=heads),
        *linear("attn.wkv", "attention", dim, hidden),
        *linear("attn.wo_a", "attention", groups * out_rank, heads * dim // groups, "out", units=groups),
        *linear("attn.wo_b", "attention", hidden, groups * out_rank, "in", units=groups),
        *vector("attn.norms", rank + dim + heads),
    ]
    if ratio:
        weights += _compressor("attn.compressor", hidden, dim, ratio)
    if ratio == OVERLAPPING_RATIO:
        weights += _indexer(fields, hidden, rank, ratio)
    return Mixer(
        weights=tuple(weights), cache=_cache(fields, dim, ratio), num_heads=heads, query_dim=dim, value_dim=dim
    )


def _overlap(ratio: int) -> int:
    return 2 if ratio == OVERLAPPING_RATIO else 1


def _compressor(name: str, hidden: int, dim: int, ratio: int) -> tuple[Weight, ...]:
    width = _overlap(ratio) * dim
    return (
        *linear(f"{name}.wkv", "other", width, hidden),
        *linear(f"{name}.wgate", "other", width, hidden),
        *vector(f"{name}.norms", ratio * width + dim),
    )


def _indexer(fields: Fields, hidden: int, rank: int, ratio: int) -> tuple[Weight, ...]:
    heads, dim = fields.need("index_n_heads"), fields.need("index_head_dim")
    return (
        *linear("attn.indexer.wq_b", "attention", heads * dim, rank),
        *linear("attn.indexer.weights_proj", "other", heads, hidden),
        *_compressor("attn.indexer.compressor", hidden, dim, ratio),
    )


def _cache(fields: Fields, dim: int, ratio: int) -> Cache:
    indexed = ratio == OVERLAPPING_RATIO
    return Cache(
        kind="compressed",
        latent_dim=dim,
        window_tokens=fields.need("sliding_window"),
        ratio=ratio,
        index_dim=fields.need("index_head_dim") if indexed else 0,
        num_index_heads=fields.need("index_n_heads") if indexed else 0,
        top_k_tokens=fields.count("index_topk") if indexed else 0,
        state_bytes=2 * ratio * _overlap(ratio) * dim * 4,
    )
