"""Reads gpt-oss: every other layer has a window; attention sinks; biases everywhere."""

from __future__ import annotations

from dataclasses import replace

from longboat.catalog.families.attention import grouped_attention, heads_of
from longboat.catalog.families.feed_forward import experts
from longboat.catalog.families.parts import Mixer, Stack, join, vector
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.model_shape import Layer

__all__ = ("read_gpt_oss",)


def read_gpt_oss(fields: Fields) -> Stack:
    """Read layers by ``layer_types``."""
    hidden = fields.need("hidden_size")
    kinds = fields.words("layer_types") or ("sliding_attention", "full_attention") * fields.need("num_hidden_layers")
    return Stack(layers=tuple(_layer(fields, hidden, kind) for kind in kinds[: fields.need("num_hidden_layers")]))


def _layer(fields: Fields, hidden: int, kind: str) -> Layer:
    window = fields.count("sliding_window") if kind == "sliding_attention" else 0
    heads = heads_of(fields)
    mixer = grouped_attention(hidden, heads, window_tokens=window, bias=True, out_bias=True)
    moe = experts(
        hidden,
        fields.need("intermediate_size"),
        fields.need("num_local_experts", "num_experts"),
        fields.need("num_experts_per_tok", "experts_per_token"),
        bias=True,
        router_bias=True,
    )
    return join(_with_sinks(mixer), moe, 2 * hidden)


def _with_sinks(mixer: Mixer) -> Mixer:
    return replace(mixer, weights=mixer.weights + vector("self_attn.sinks", mixer.num_heads, "attention"))
