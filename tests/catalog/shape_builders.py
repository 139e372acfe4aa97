"""Builders of small model shapes for tests."""

from __future__ import annotations

from longboat.catalog.shape.cache import Cache
from longboat.catalog.shape.model_shape import Layer, ModelShape, share_equal_layers
from longboat.catalog.shape.weight import Part, Weight

__all__ = ("kv_bytes_of", "kv_fixed_bytes", "make_layer", "make_shape", "params_of")


def make_layer(*, hidden: int = 64, heads: int = 4, kv_heads: int = 2, head_dim: int = 16, width: int = 128) -> Layer:
    """Make a dense layer in bf16."""
    q, kv = heads * head_dim, kv_heads * head_dim
    return Layer(
        weights=(
            Weight(name="q_proj", part="attention", rows=q, columns=hidden, shard="out", units=heads),
            Weight(name="kv_proj", part="attention", rows=2 * kv, columns=hidden, shard="kv_heads", units=kv_heads),
            Weight(name="o_proj", part="attention", rows=hidden, columns=q, shard="in", units=heads),
            Weight(name="gate_up_proj", part="mlp", rows=2 * width, columns=hidden, shard="out"),
            Weight(name="down_proj", part="mlp", rows=hidden, columns=width, shard="in"),
            Weight(name="norms", part="norm", rows=2 * hidden),
        ),
        cache=Cache(kind="full", num_kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim),
        num_heads=heads,
        query_dim=head_dim,
        value_dim=head_dim,
    )


def make_shape(*, num_layers: int = 4, vocab: int = 1024, hidden: int = 64, tied: bool = False) -> ModelShape:
    """Make a dense model in bf16."""
    end = Weight(name="embed_tokens", part="embedding", rows=vocab, columns=hidden, shard="vocab")
    return ModelShape(
        name="toy",
        architecture="ToyForCausalLM",
        layers=share_equal_layers(make_layer(hidden=hidden) for _ in range(num_layers)),
        embedding=end,
        head=None if tied else Weight(name="lm_head", part="head", rows=vocab, columns=hidden, shard="vocab"),
        others=(Weight(name="norm", part="norm", rows=hidden),),
        hidden_size=hidden,
        vocab_size=vocab,
        max_context_tokens=4096,
    )


def params_of(shape: ModelShape, part: Part) -> int:
    """Count the parameters of the weights of ``part``."""
    return sum(weight.num_params for weight in shape.weights() if weight.part == part)


def kv_fixed_bytes(shape: ModelShape, dtype_bytes: float = 2) -> int:
    """Add up the bytes of a long sequence that do not grow with it."""
    return sum(layer.cache.fixed_bytes(dtype_bytes) for layer in shape.layers)


def kv_bytes_of(shape: ModelShape, context_tokens: int, dtype_bytes: float = 2) -> int:
    """Add up the bytes of the caches of one sequence."""
    return sum(layer.cache.bytes_of(context_tokens, dtype_bytes) for layer in shape.layers)
