"""Reads Llama 3.2 Vision: some layers attend to the image's tokens instead of the text's."""

from __future__ import annotations

from dataclasses import replace

from longboat.catalog.families.attention import grouped_attention, heads_of
from longboat.catalog.families.decoder import read_feed_forward
from longboat.catalog.families.parts import Stack, join
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.cache import Cache
from longboat.catalog.shape.model_shape import Layer

__all__ = ("read_mllama",)

IMAGE_TOKENS = 4 * 1601
"""Tokens of an image of four tiles of 560 x 560 pixels, with one for the class of each."""
CACHE_BYTES = 2


def read_mllama(fields: Fields) -> Stack:
    """Read layers; those of ``cross_attention_layers`` keep an image's keys and values, whatever was read."""
    crossing = fields.numbers("cross_attention_layers")
    layers = tuple(_layer(fields, index, index in crossing) for index in range(fields.need("num_hidden_layers")))
    return Stack(layers=layers, prefix="language_model.model.")


def _layer(fields: Fields, index: int, crosses: bool) -> Layer:
    hidden, heads = fields.need("hidden_size"), heads_of(fields)
    mixer = grouped_attention(hidden, heads, norm_params=2 * heads.key_dim if crosses else 0)
    if crosses:
        kept = IMAGE_TOKENS * heads.num_kv_heads * (heads.key_dim + heads.value_dim) * CACHE_BYTES
        mixer = replace(mixer, cache=Cache(kind="state", state_bytes=kept, num_state_heads=heads.num_kv_heads))
    return join(mixer, read_feed_forward(fields, hidden, index), 2 * hidden)
