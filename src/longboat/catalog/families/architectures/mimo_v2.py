"""Reads MiMo-V2: window layers with their own heads between full ones."""

from __future__ import annotations

from longboat.catalog.families.attention import Heads, grouped_attention, heads_of
from longboat.catalog.families.decoder import read_feed_forward
from longboat.catalog.families.parts import Mixer, Stack, join
from longboat.catalog.formats.config_fields import Fields

__all__ = ("read_mimo_v2",)


def read_mimo_v2(fields: Fields) -> Stack:
    """Read layers by ``hybrid_layer_pattern``: 1 for a window."""
    hidden = fields.need("hidden_size")
    kinds = tuple(int(kind == "sliding_attention") for kind in fields.words("layer_types"))
    pattern = fields.numbers("hybrid_layer_pattern") or kinds or (0,) * fields.need("num_hidden_layers")
    layers = tuple(
        join(_mixer(fields, hidden, bool(slides)), read_feed_forward(fields, hidden, index), 2 * hidden)
        for index, slides in enumerate(pattern)
    )
    return Stack(layers=layers)


def _mixer(fields: Fields, hidden: int, slides: bool) -> Mixer:
    heads = heads_of(fields)
    if not slides:
        return grouped_attention(hidden, heads)
    in_class = "hybrid_layer_pattern" not in fields  # as transformers 5 writes it: twice the heads in windows
    own = Heads(
        num_heads=fields.count("swa_num_attention_heads", default=heads.num_heads),
        num_kv_heads=fields.count("swa_num_key_value_heads", default=heads.num_kv_heads * (2 if in_class else 1)),
        key_dim=fields.count("swa_head_dim", default=heads.key_dim),
        value_dim=fields.count("swa_v_head_dim", default=heads.value_dim),
    )
    return grouped_attention(hidden, own, window_tokens=fields.need("sliding_window"), norm_params=own.num_heads)
