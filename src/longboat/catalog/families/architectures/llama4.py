"""Reads Llama 4: attention within chunks in three of four layers, experts with one shared, dense layers between."""

from __future__ import annotations

from longboat.catalog.families.attention import grouped_attention, heads_of
from longboat.catalog.families.feed_forward import dense, experts
from longboat.catalog.families.parts import FeedForward, Stack, join
from longboat.catalog.families.sparsity import is_sparse
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.model_shape import Layer

__all__ = ("read_llama4",)

GLOBAL_INTERVAL = 4


def read_llama4(fields: Fields) -> Stack:
    """Read the layers: every fourth sees all tokens, the others those of their chunk."""
    num_layers = fields.need("num_hidden_layers")
    return Stack(layers=tuple(_layer(fields, index) for index in range(num_layers)), prefix="language_model.model.")


def _layer(fields: Fields, index: int) -> Layer:
    hidden = fields.need("hidden_size")
    interval = fields.count("no_rope_layer_interval", default=GLOBAL_INTERVAL)
    chunk = 0 if (index + 1) % interval == 0 else fields.count("attention_chunk_size")
    mixer = grouped_attention(hidden, heads_of(fields), window_tokens=chunk)
    return join(mixer, _feed_forward(fields, hidden, index), 2 * hidden)


def _feed_forward(fields: Fields, hidden: int, index: int) -> FeedForward:
    width = fields.need("intermediate_size")
    if not is_sparse(fields, index):
        return dense(hidden, fields.count("intermediate_size_mlp", default=width), name="feed_forward")
    return experts(
        hidden,
        width,
        fields.need("num_local_experts"),
        fields.need("num_experts_per_tok"),
        shared_width=width,
        name="feed_forward",
    )
