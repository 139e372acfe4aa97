"""Reads Gemma 1 to 4: four norms per layer, window layers between full ones, tied embedding."""

from __future__ import annotations

from dataclasses import replace

from longboat.catalog.families.attention import Heads, grouped_attention, heads_of
from longboat.catalog.families.feed_forward import dense, experts
from longboat.catalog.families.parts import FeedForward, Mixer, Stack, join, linear, vector
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.cache import NO_CACHE
from longboat.catalog.shape.model_shape import Layer
from longboat.catalog.shape.weight import Weight

__all__ = ("read_gemma",)

# Period of the layers that see all tokens, where the config has neither a list nor a pattern.
PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "gemma4_text": 6}
GLOBAL_HEAD_DIM = 512
"""Numbers in a head of Gemma 4's layers that see all tokens, where the config does not say."""


def read_gemma(fields: Fields) -> Stack:
    """Read layers by ``layer_types`` or the window pattern."""
    kinds = _kinds(fields)
    layers = tuple(_layer(fields, index, kind, len(kinds)) for index, kind in enumerate(kinds))
    return Stack(layers=layers, others=(*_inputs_of_layers(fields, len(kinds)), *_altup(fields)))


def _kinds(fields: Fields) -> tuple[str, ...]:
    num_layers = fields.need("num_hidden_layers")
    if kinds := fields.words("layer_types"):
        return kinds[:num_layers]
    default = PATTERNS.get(fields.word("model_type"), 1)
    pattern = fields.count("sliding_window_pattern", "_sliding_window_pattern", default=default)
    return tuple("full_attention" if (index + 1) % pattern == 0 else "sliding_attention" for index in range(num_layers))


def _layer(fields: Fields, index: int, kind: str, num_layers: int) -> Layer:
    own = fields.at(index, ("intermediate_size",))
    hidden, width = own.need("hidden_size"), own.need("intermediate_size")
    shared = 0 < num_layers - own.count("num_kv_shared_layers") <= index
    if shared and own.flag("use_double_wide_mlp"):
        width *= 2
    moe = own.flag("enable_moe_block")
    feed_forward = _both(own, hidden) if moe else dense(hidden, width)
    feed_forward = replace(feed_forward, weights=feed_forward.weights + _beside(own, hidden))
    num_norms = 2 if own.word("model_type") == "gemma" else 4
    return join(_mixer(own, hidden, index, kind, shared=shared), feed_forward, (num_norms + 3 * moe) * hidden)


def _mixer(fields: Fields, hidden: int, index: int, kind: str, *, shared: bool) -> Mixer:
    """Build attention. shared: it reads the keys and values that an earlier layer made, and keeps none."""
    heads = _heads(fields, index, full=kind == "full_attention")
    normed = fields.word("model_type").startswith(("gemma3", "gemma4"))
    mixer = grouped_attention(
        hidden,
        heads,
        window_tokens=0 if kind == "full_attention" else fields.count("sliding_window"),
        norm_params=2 * heads.key_dim if normed else 0,
        value_weight=not (kind == "full_attention" and fields.flag("attention_k_eq_v")),
    )
    if not shared:
        return mixer
    kept = tuple(weight for weight in mixer.weights if "k_proj" not in weight.name and "v_proj" not in weight.name)
    return replace(mixer, weights=kept, cache=NO_CACHE)


def _heads(fields: Fields, index: int, *, full: bool) -> Heads:
    """Return the heads of a layer; layers that see all tokens have wider ones in Gemma 4."""
    heads, told = heads_of(fields), fields.section("per_layer_config")
    if own := (told.section(f"{index:02d}") or told.section(str(index))):
        dim = own.count("head_dim", default=heads.key_dim)
        kv_heads = own.count("num_key_value_heads", default=heads.num_kv_heads)
    elif full and (fields.word("model_type").startswith("gemma4") or "global_head_dim" in fields) and not told:
        dim = fields.count("global_head_dim", default=GLOBAL_HEAD_DIM)
        kv_heads = fields.count("num_global_key_value_heads", default=heads.num_kv_heads)
    else:
        return heads
    return Heads(num_heads=heads.num_heads, num_kv_heads=kv_heads, key_dim=dim, value_dim=dim)


def _beside(fields: Fields, hidden: int) -> tuple[Weight, ...]:
    """Return what the layers of Gemma 3n and the E models have beside: an input of their own, LAuReL, AltUp."""
    inputs, rank = fields.count("hidden_size_per_layer_input"), fields.count("laurel_rank")
    streams = fields.count("altup_num_inputs") if rank else 0
    weights: tuple[Weight, ...] = ()
    if inputs:
        weights += linear("per_layer_input_gate", "mlp", inputs, hidden)
        weights += linear("per_layer_projection", "mlp", hidden, inputs)
    if rank:
        weights += linear("laurel.linear_left", "mlp", rank, hidden) + linear(
            "laurel.linear_right", "mlp", hidden, rank
        )
    return weights + vector("altup", streams * hidden + streams**2 + streams**3 if streams else 0)


def _inputs_of_layers(fields: Fields, num_layers: int) -> tuple[Weight, ...]:
    """Return the embedding that has an own input for each layer, and its projection (Gemma 3n, E models)."""
    inputs = num_layers * fields.count("hidden_size_per_layer_input")
    if not inputs:
        return ()
    rows = fields.count("vocab_size_per_layer_input", "vocab_size")
    return (
        *linear("embed_tokens_per_layer", "other", rows, inputs, "vocab"),
        *linear("per_layer_model_projection", "other", inputs, fields.need("hidden_size")),
    )


def _altup(fields: Fields) -> tuple[Weight, ...]:
    streams, hidden = fields.count("altup_num_inputs"), fields.need("hidden_size")
    if streams < 2 or "laurel_rank" not in fields:
        return ()
    return linear("altup_projections", "other", 2 * (streams - 1) * hidden, hidden)


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
