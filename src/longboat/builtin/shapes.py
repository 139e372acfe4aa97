"""Shapes of the random models: maps a size such as ``250m`` to the nearest Qwen3 shape in the table.

One shape more is a mixture of experts (Qwen3-MoE), of ``builtin:tiny-moe``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from longboat.builtin.safetensors_file import DEVIATION

__all__ = ("SHAPES", "TINY_MOE", "Shape", "nearest_shape", "parse_size")

MAX_PARAMETERS = 10_000_000_000
MIN_PARAMETERS = 1_000_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([mb])")
_UNITS = {"m": 1_000_000, "b": 1_000_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that decide the weights of a Qwen3 model with tied embeddings. Heads divide by 8, layers by 4."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int = 0  # of each layer; 0: a dense model. ``intermediate_size`` is then an expert's
    deviation: float = DEVIATION  # standard deviation of the weights

    def tensors(self, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and shape of every weight, in the order of the file."""
        yield "model.embed_tokens.weight", (vocabulary, self.hidden_size)
        for layer in range(self.num_layers):
            for name, shape in self._layer_tensors():
                yield f"model.layers.{layer}.{name}.weight", shape
        yield "model.norm.weight", (self.hidden_size,)

    def _layer_tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield "input_layernorm", (hidden,)
        yield "self_attn.q_proj", (query, hidden)
        yield "self_attn.k_proj", (key_value, hidden)
        yield "self_attn.v_proj", (key_value, hidden)
        yield "self_attn.o_proj", (hidden, query)
        yield "self_attn.q_norm", (self.head_dim,)
        yield "self_attn.k_norm", (self.head_dim,)
        yield "post_attention_layernorm", (hidden,)
        if self.num_experts:
            yield "mlp.gate", (self.num_experts, hidden)
        for part in [f"mlp.experts.{number}" for number in range(self.num_experts)] or ["mlp"]:
            yield f"{part}.gate_proj", (inner, hidden)
            yield f"{part}.up_proj", (inner, hidden)
            yield f"{part}.down_proj", (hidden, inner)

    def num_parameters(self, vocabulary: int) -> int:
        return sum(math.prod(shape) for _, shape in self.tensors(vocabulary))


def _shape(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> Shape:
    return Shape(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
    )


SHAPES: Mapping[str, Shape] = {
    "1m": _shape(96, 256, 4, 8, 4, 32),
    "10m": _shape(256, 1024, 8, 8, 8, 64),
    "25m": _shape(384, 1536, 8, 8, 8, 64),
    "50m": _shape(512, 2048, 12, 8, 8, 64),
    "100m": _shape(768, 2304, 12, 16, 8, 64),
    "250m": _shape(1024, 3072, 20, 16, 8, 64),
    "500m": _shape(1280, 3840, 24, 16, 8, 64),
    "1b": _shape(1536, 5376, 28, 16, 8, 128),
    "2b": _shape(2048, 7168, 32, 16, 8, 128),
    "4b": _shape(2560, 9728, 36, 32, 8, 128),
    "8b": _shape(4096, 12288, 36, 32, 8, 128),
}
"""The number of weights, with a vocabulary of 4,096, is within 20 % of the name."""

TINY_MOE = Shape(
    hidden_size=128,
    intermediate_size=64,
    num_layers=4,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    num_experts=8,
    deviation=0.08,  # with less, every response repeats one token
)
"""``builtin:tiny-moe``: 1.7 million weights."""


def parse_size(text: str) -> int | None:
    """Return the parameters meant by ``250m`` or ``1.5b``; None for anything else, or outside 1m … 10b."""
    if not (match := _SIZE.fullmatch(text)):
        return None
    count = round(float(match[1]) * _UNITS[match[2]])
    return count if MIN_PARAMETERS <= count <= MAX_PARAMETERS else None


def nearest_shape(num_parameters: int) -> tuple[str, Shape]:
    """Return the table's entry whose name is nearest by ratio: 150m is nearer to 100m than to 250m."""
    return min(SHAPES.items(), key=lambda entry: abs(math.log((parse_size(entry[0]) or 1) / num_parameters)))
