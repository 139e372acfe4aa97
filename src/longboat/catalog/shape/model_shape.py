"""The shape of a model, weight by weight and layer by layer: planning counts bytes and operations from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from longboat.catalog.shape.cache import NO_CACHE, Cache
from longboat.catalog.shape.weight import Weight

__all__ = ("MAX_LAYERS", "Layer", "ModelShape", "share_equal_layers")

# No model has more: a broken file must not take the memory of the machine that reads it.
MAX_LAYERS = 4096
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer."""

    weights: tuple[Weight, ...]
    cache: Cache = NO_CACHE
    num_heads: int = 0  # query heads; 0 where the layer has no attention
    # numbers of a query (and key) in one head; attention costs 2 x heads x (query_dim + value_dim) operations for each
    # pair of tokens
    query_dim: int = 0
    value_dim: int = 0  # numbers of a value in one head
    num_experts: int = 0  # 0 for a dense layer
    experts_per_token: int = 0  # 0 for a dense layer

    @property
    def num_params(self) -> int:
        return sum(weight.num_params for weight in self.weights)

    @property
    def num_active_params(self) -> int:
        """Parameters that one token passes through: all, but of the experts only the chosen ones."""
        return sum(self.active_params_of(weight) for weight in self.weights)

    @property
    def num_bytes(self) -> int:
        return sum(weight.num_bytes for weight in self.weights)

    def active_params_of(self, weight: Weight) -> int:
        """Return the parameters of ``weight`` that one token passes through."""
        if weight.part == "experts" and self.num_experts:
            return weight.num_params * self.experts_per_token // self.num_experts
        return weight.num_params

    def rank_bytes(self, *, tensor: int = 1, expert: int = 1) -> int:
        """Return the bytes of the fullest of ``tensor`` ranks; expert: ranks that divide the experts, 1: none do."""
        return sum(weight.rank_bytes(tensor=tensor, expert=expert) for weight in self.weights)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A whole model.

    It has 14 fields, two more than usual, because it is a record of a file's contents; and what was counted of it.
    """

    name: str
    architecture: str  # class name of config.json, or the architecture of a GGUF header
    layers: tuple[Layer, ...]  # in order; equal layers are one object
    embedding: Weight | None  # None where unknown tensors hold it
    head: Weight | None = None  # None where it is the embedding (tied)
    # weights of no layer: final norm (first), vision tower, modules for multi-token prediction
    others: tuple[Weight, ...] = ()
    hidden_size: int
    vocab_size: int
    max_context_tokens: int = 0  # 0 where the model does not say
    dtype: str = "bfloat16"  # type of the computation (``bfloat16``)
    quantization: str = ""  # name of the method; ``""``: none
    kv_cache_dtype: str = ""  # type that the files are made for (``fp8``); ``""``: as ``dtype``
    estimate: tuple[str, ...] = ()  # reasons why numbers are estimates; empty where they are exact
    image_tokens: int = 0  # prompt tokens of an image (of 1024 x 1024 pixels where that matters); 0: not known
    _counted: dict[Hashable, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    @property
    def tied(self) -> bool:
        """Whether the embedding is the output head too; pipelines hold it twice."""
        return self.head is None

    def once(self, key: Hashable, count: Callable[[], T]) -> T:
        """Return what ``count`` returned for this key before, or call it.

        A search asks thousands of times for the same parts of a model.
        """
        found: T | None = self._counted.get(key)
        if found is None:
            found = self._counted[key] = count()
        return found

    @property
    def kinds(self) -> tuple[Layer, ...]:
        """Each sort of layer once."""
        return self.once("kinds", lambda: tuple(layer for layer, _ in self.counted_layers(0, len(self.layers))))

    def counted_layers(self, start: int, stop: int) -> tuple[tuple[Layer, int], ...]:
        """Return each sort of layer from ``start`` to before ``stop`` once, in order, and how often it occurs."""
        return self.once(("layers", start, stop), lambda: tuple(_counted(self.layers[start:stop])))

    def weights(self) -> Iterator[Weight]:
        """Yield every weight, those of equal layers as often as they occur."""
        for layer in self.layers:
            yield from layer.weights
        yield from (weight for weight in (self.embedding, self.head) if weight is not None)
        yield from self.others

    @property
    def num_params(self) -> int:
        """Parameters of the language model, as publishers count: without vision tower and prediction heads."""
        return sum(weight.num_params for weight in self.weights() if weight.part not in ("vision", "mtp"))

    @property
    def num_loaded_params(self) -> int:
        """Parameters that an engine loads: vision tower included, without prediction heads."""
        return sum(weight.num_params for weight in self.weights() if weight.part != "mtp")

    @property
    def num_active_params(self) -> int:
        """Parameters that one token passes through, embedding and head included."""
        layers = sum(layer.num_active_params for layer in self.layers)
        ends = sum(weight.num_params for weight in (self.embedding, self.head) if weight is not None)
        return layers + ends + sum(w.num_params for w in self.others if w.part not in ("vision", "mtp"))

    @property
    def weight_bytes(self) -> int:
        """Bytes that an engine loads: all but the modules for multi-token prediction."""
        loaded = (weight for weight in self.weights() if weight.part != "mtp")
        return self.once("weight_bytes", lambda: sum(weight.num_bytes for weight in loaded))

    @property
    def file_bytes(self) -> int:
        """Bytes of all weights, modules for multi-token prediction included: what is downloaded."""
        return sum(weight.num_bytes for weight in self.weights())

    def kv_bytes_per_token(self, dtype_bytes: float = 2) -> float:
        """Return the bytes that each further token of a long sequence adds to the caches of all layers."""
        return sum(layer.cache.bytes_per_token(dtype_bytes) for layer in self.layers)

    def window_bytes_per_token(self, dtype_bytes: float = 2) -> float:
        """Return the bytes that a token adds to the caches of layers with a window, until their windows are full."""
        windows = (layer.cache for layer in self.layers if layer.cache.kind == "window")
        return sum(cache.entry_bytes(dtype_bytes) for cache in windows)

    @property
    def state_bytes(self) -> int:
        """Bytes of the states that a sequence has at any length."""
        return sum(layer.cache.state_bytes for layer in self.layers)


def _counted(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, int]]:
    by_identity = {id(layer): layer for layer in layers}
    for key, count in Counter(map(id, layers)).items():
        yield by_identity[key], count


def share_equal_layers(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Return the same layers, equal ones as one object, so that results can be shared between them."""
    known: dict[Layer, Layer] = {}
    return tuple(known.setdefault(layer, layer) for layer in layers)
