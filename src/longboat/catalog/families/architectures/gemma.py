"""Reads Gemma 1 to 4: four norms per layer, window layers between full ones, tied embedding."""

from __future__ import annotations

from longboat.catalog.families.attention import Heads, grouped_attention, heads_of
from longboat.catalog.families.feed_forward import dense, experts
from longboat.catalog.families.parts import FeedForward, Mixer, Stack, join, vector
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.model_shape import Layer

__all__ = ("read_gemma",)

# Period of the layers that see all tokens, where the config has neither a list nor a pattern.
PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}


def read_gemma(fields: Fields) -> Stack:
    """Read layers by ``layer_types`` or the window pattern."""
    doubts = []
    if fields.count("hidden_size_per_layer_input") or fields.count("num_kv_shared_layers"):
        doubts.append("embeddings of each layer and shared key-value layers (Gemma 3n, E models) are left out")
    return Stack(layers=tuple(_layer(fields, kind) for kind in _kinds(fields)), estimate=tuple(doubts))


def _kinds(fields: Fields) -> tuple[str, ...]:
    num_layers = fields.need("num_hidden_layers")
    if kinds := fields.words("layer_types"):
        return kinds[:num_layers]
    default = PATTERNS.get(fields.word("model_type"), 1)
    pattern = fields.count("sliding_window_pattern", default=default)
    return tuple("full_attention" if (index + 1) % pattern == 0 else "sliding_attention" for index in range(num_layers))


def _layer(fields: Fields, kind: str) -> Layer:
    hidden = fields.need("hidden_size")
    num_norms = 2 if fields.word("model_type") == "gemma" else 4
    feed_forward = (
        _both(fields, hidden) if fields.flag("enable_moe_block") else dense(hidden, fields.need("intermediate_size"))
    )
    extra_norms = 3 if fields.flag("enable_moe_block") else 0
    return join(_mixer(fields, hidden, kind), feed_forward, (num_norms + extra_norms) * hidden)


def _mixer(fields: Fields, hidden: int, kind: str) -> Mixer:
    heads = heads_of(fields)
    full = kind == "full_attention"
    if full and "global_head_dim" in fields:
        dim = fields.need("global_head_dim")
        kv_heads = fields.count("num_global_key_value_heads", default=heads.num_kv_heads)
        heads = Heads(num_heads=heads.num_heads, num_kv_heads=kv_heads, key_dim=dim, value_dim=dim)
    normed = fields.word("model_type").startswith(("gemma3", "gemma4"))
    return grouped_attention(
        hidden,
        heads,
        window_tokens=0 if full else fields.count("sliding_window"),
        norm_params=2 * heads.key_dim if normed else 0,
        value_weight=not (full and fields.flag("attention_k_eq_v")),
    )


def _both(fields: Fields, hidden: int) -> FeedForward:
    """Build Gemma 4's mixture: a dense network and experts side by side."""
    beside = dense(hidden, fields.need("intermediate_size"))
    width = fields.need("moe_intermediate_size", "expert_intermediate_size")
    chosen = fields.need("top_k_experts", "num_experts_per_tok")
    moe = experts(hidden, width, fields.need("num_experts"), chosen, name="experts_block")
    scales = vector("router.scale", hidden + moe.num_experts, "router")
    return FeedForward(
        weights=beside.weights + moe.weights + scales,
        num_experts=moe.num_experts,
        experts_per_token=moe.experts_per_token,
    )
