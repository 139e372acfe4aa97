"""Reads encoders of texts (BERT, RoBERTa, XLM-RoBERTa): they keep no tokens, and generate none."""

from __future__ import annotations

from longboat.catalog.families.attention import grouped_attention, heads_of
from longboat.catalog.families.parts import FeedForward, Mixer, Stack, join, linear, vector
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.weight import Weight

__all__ = ("ENCODERS", "read_encoder")

_FAMILIES = ("Bert", "Roberta", "XLMRoberta", "Camembert")
_HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification")
ENCODERS = frozenset(f"{family}{head}" for family in _FAMILIES for head in _HEADS)
"""Architectures that are read by ``read_encoder``."""


def read_encoder(fields: Fields) -> Stack:
    """Read the layers, and the embeddings of positions and of kinds of text; all matrices have biases."""
    hidden, width = fields.need("hidden_size"), fields.need("intermediate_size")
    found = grouped_attention(hidden, heads_of(fields), bias=True, out_bias=True)
    mixer = Mixer(
        weights=found.weights, num_heads=found.num_heads, query_dim=found.query_dim, value_dim=found.value_dim
    )
    layer = join(mixer, FeedForward(weights=_feed_forward(hidden, width)), 4 * hidden)
    places = fields.count("max_position_embeddings") + fields.count("type_vocab_size")
    others = (
        *linear("position_embeddings", "other", places, hidden),
        *vector("embeddings.norm", 2 * hidden),
        *linear("pooler", "other", hidden, hidden, bias=True),
    )
    return Stack(layers=(layer,) * fields.need("num_hidden_layers"), prefix="encoder.", others=others)


def _feed_forward(hidden: int, width: int) -> tuple[Weight, ...]:
    return (
        *linear("intermediate", "mlp", width, hidden, "out", bias=True),
        *linear("output", "mlp", hidden, width, "in", bias=True),
    )
