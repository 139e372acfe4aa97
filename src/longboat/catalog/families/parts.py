"""The parts of every family: linear weights, vectors, and the two halves of a layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.cache import NO_CACHE, Cache
from longboat.catalog.shape.model_shape import Layer
from longboat.catalog.shape.weight import Part, Shard, Weight

__all__ = ("FeedForward", "Mixer", "Stack", "as_prediction_head", "join", "linear", "vector")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """The half of a layer that looks at other tokens; fields as in ``Layer``."""

    weights: tuple[Weight, ...]
    cache: Cache = NO_CACHE
    num_heads: int = 0
    query_dim: int = 0
    value_dim: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """The half of a layer that works on each token; fields as in ``Layer``."""

    weights: tuple[Weight, ...]
    num_experts: int = 0
    experts_per_token: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The result of a family's reader."""

    layers: tuple[Layer, ...]
    prefix: str = "model."  # text before ``layers.0`` in the names of the publisher's files
    mtp: tuple[Weight, ...] = ()  # weights of modules for multi-token prediction
    others: tuple[Weight, ...] = ()  # further weights of no layer
    estimate: tuple[str, ...] = ()  # reasons why numbers are estimates


def linear(
    name: str,
    part: Part,
    rows: int,
    columns: int,
    shard: Shard = "replicated",
    *,
    units: int = 0,
    count: int = 1,
    bias: bool = False,
) -> tuple[Weight, ...]:
    """Return a matrix from ``columns`` inputs to ``rows`` outputs, and its bias where it has one."""
    weight = Weight(name=name, part=part, rows=rows, columns=columns, count=count, shard=shard, units=units)
    if not bias:
        return (weight,)
    cut: Shard = "replicated" if shard == "in" else shard
    return weight, Weight(name=f"{name}.bias", part=part, rows=rows, count=count, shard=cut, units=units)


def vector(name: str, numbers: int, part: Part = "norm") -> tuple[Weight, ...]:
    """Return numbers that every rank holds: norms, biases of routers, scales."""
    return (Weight(name=name, part=part, rows=numbers),) if numbers else ()


def join(mixer: Mixer | None, feed_forward: FeedForward | None, norm_params: int) -> Layer:
    """Return a layer of either or both halves, with ``norm_params`` numbers of norms around them."""
    mixer = mixer or Mixer(weights=())
    feed_forward = feed_forward or FeedForward(weights=())
    return Layer(
        weights=(*mixer.weights, *feed_forward.weights, *vector("norms", norm_params)),
        cache=mixer.cache,
        num_heads=mixer.num_heads,
        query_dim=mixer.query_dim,
        value_dim=mixer.value_dim,
        num_experts=feed_forward.num_experts,
        experts_per_token=feed_forward.experts_per_token,
    )


def as_prediction_head(
    fields: Fields, layers: Iterable[Layer], *, own_ends: bool = False, num_modules: int = 1
) -> tuple[Weight, ...]:
    """Return the weights of modules for multi-token prediction: ``layers`` and a projection of two hidden states each.

    own_ends: the files hold a copy of the embedding and of the head in each module (DeepSeek-V3, GLM-4.5)
    """
    hidden, vocab = fields.need("hidden_size"), fields.need("vocab_size")
    weights = [*linear("eh_proj", "mtp", hidden, 2 * hidden), *vector("mtp_norms", 3 * hidden, "mtp")]
    weights += [weight for layer in layers for weight in layer.weights]
    if own_ends:
        weights += linear("embed_tokens", "mtp", vocab, hidden, "vocab")
        weights += linear("shared_head", "mtp", vocab, hidden, "vocab")
    return tuple(
        replace(weight, part="mtp", name=f"mtp.{index}.{weight.name}")
        for index in range(num_modules)
        for weight in weights
    )
