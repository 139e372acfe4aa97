"""Reads decoders from before Llama, and their like: no gate in the feed-forward network, biases, learned positions."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.catalog.families.attention import grouped_attention, heads_of
from longboat.catalog.families.feed_forward import dense
from longboat.catalog.families.parts import Stack, join, linear
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.weight import Weight

__all__ = ("CLASSIC", "Traits", "read_classic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What the code of a family fixes and its configs do not say."""

    bias: bool = False  # attention has biases
    mlp_bias: bool = False  # the feed-forward network has biases
    positions: int = 0  # learned positions beside those of the config; 0 and more: the family learns positions
    learned: bool = False  # the family learns positions


_BIASED = Traits(bias=True, mlp_bias=True)
_PLAIN = Traits()
CLASSIC: dict[str, Traits] = {
    "RefinedWeb": _PLAIN,
    "RefinedWebModel": _PLAIN,
    "apertus": _PLAIN,
    "arcee": _PLAIN,
    "biogpt": Traits(bias=True, mlp_bias=True, learned=True, positions=2),
    "bloom": _BIASED,
    "ctrl": _BIASED,
    "codegen": Traits(mlp_bias=True),
    "falcon": _PLAIN,
    "gpt-sw3": Traits(bias=True, mlp_bias=True, learned=True),
    "gpt2": Traits(bias=True, mlp_bias=True, learned=True),
    "gpt_bigcode": Traits(bias=True, mlp_bias=True, learned=True),
    "gpt_neo": Traits(mlp_bias=True, learned=True),
    "gpt_neox": _BIASED,
    "gpt_neox_japanese": _PLAIN,
    "gptj": Traits(mlp_bias=True),
    "jais2": _BIASED,
    "mpt": _PLAIN,
    "nanochat": _PLAIN,
    "nemotron": _PLAIN,
    "opt": Traits(bias=True, mlp_bias=True, learned=True, positions=2),
    "persimmon": _BIASED,
    "phi": _BIASED,
    "starcoder2": _BIASED,
    "xglm": _BIASED,
}
"""Types of models (``model_type``) that are read by ``read_classic``."""

WIDTHS = ("ffn_hidden_size", "intermediate_size", "ffn_dim", "n_inner", "dff")


def read_classic(fields: Fields) -> Stack:
    """Read layers that are alike; caches of GPT-Neo keep what its windows do not see, too."""
    kind = fields.word("model_type")
    traits, hidden = CLASSIC.get(kind, _PLAIN), fields.need("hidden_size", "n_embd", "d_model")
    num_layers = fields.need("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    width = fields.count(*WIDTHS, default=fields.count("expansion_ratio", default=4) * hidden)
    feed_forward = dense(hidden, width, gated=False, bias=traits.mlp_bias)
    window = fields.count("sliding_window")
    mixer = grouped_attention(hidden, heads_of(fields), bias=traits.bias, out_bias=traits.bias, window_tokens=window)
    return Stack(layers=(join(mixer, feed_forward, 4 * hidden),) * num_layers, others=_others(fields, traits, hidden))


def _others(fields: Fields, traits: Traits, hidden: int) -> tuple[Weight, ...]:
    """Return learned positions, and the projections to and from a narrower embedding (OPT-350m)."""
    others: tuple[Weight, ...] = ()
    if traits.learned:
        places = fields.count("n_positions", "max_position_embeddings") + traits.positions
        others += linear("position_embeddings", "other", places, hidden)
    if 0 < (narrow := fields.count("word_embed_proj_dim")) != hidden:
        others += linear("project_in", "other", hidden, narrow) + linear("project_out", "other", narrow, hidden)
    return others
