"""Reads MiniMax-M3: grouped attention to blocks of tokens that an indexer chooses."""

from __future__ import annotations

from dataclasses import replace

from longboat.catalog.families.decoder import read_decoder
from longboat.catalog.families.parts import Stack, linear
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.model_shape import Layer

__all__ = ("read_minimax_m3",)

DOUBT = "the indexer of sparse attention is counted as one key per token and one query projection per head"


def read_minimax_m3(fields: Fields) -> Stack:
    """Read a common decoder, with an indexer where ``sparse_attention_freq`` is 1."""
    stack, sparse = read_decoder(fields), fields.section("sparse_attention_config")
    indexed = sparse.numbers("sparse_attention_freq") if sparse.flag("use_sparse_attention") else ()
    hidden = fields.need("hidden_size")
    layers = [
        _indexed(layer, sparse, hidden) if index < len(indexed) and indexed[index] else layer
        for index, layer in enumerate(stack.layers)
    ]
    return replace(stack, layers=tuple(layers), estimate=(*stack.estimate, DOUBT))


def _indexed(layer: Layer, sparse: Fields, hidden: int) -> Layer:
    heads, dim = sparse.need("sparse_num_index_heads"), sparse.need("sparse_index_dim")
    chosen = sparse.count("sparse_topk_blocks") * sparse.count("sparse_block_size")
    weights = linear("self_attn.index_q_proj", "attention", heads * dim, hidden)
    weights += linear("self_attn.index_k_proj", "attention", dim, hidden)
    cache = replace(layer.cache, index_dim=dim, num_index_heads=heads, top_k_tokens=chosen)
    return replace(layer, weights=layer.weights + weights, cache=cache)
