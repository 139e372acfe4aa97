"""Converts a shape to another quantization, by its common name, or to wider numbers: a what-if."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from longboat.catalog.formats.gguf_types import bits_of
from longboat.catalog.names import nearest_names
from longboat.catalog.quantization.quantized import quantize
from longboat.catalog.quantization.rules import (
    FP8,
    MXFP4,
    NF4_DOUBLE,
    NVFP4,
    Form,
    Quantization,
    Rule,
    grouped_form,
)
from longboat.catalog.shape.model_shape import Layer, ModelShape, share_equal_layers
from longboat.catalog.shape.weight import Weight
from longboat.core.errors import UserInputError

__all__ = ("GGUF_MIXES", "QUANTIZATIONS", "requantized", "widened")

# As in published files: groups of 128 for integers, FP8 in blocks of 128 x 128.
METHODS = {
    "fp8": Form(bits=8.0 + 32 / 128**2, group=128, row_group=128),
    "fp8-tensor": FP8,
    "int8": Form(bits=8.0, per_row_bits=32.0),
    "awq": grouped_form(4, 128),
    "gptq": grouped_form(4, 128),
    "gptq-int8": grouped_form(8, 128),
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
    "bitsandbytes": NF4_DOUBLE,
    "mlx-4bit": Form(bits=4.5, group=64),
    "mlx-8bit": Form(bits=8.5, group=64),
}
# llama.cpp's mixes: base type, and type of values and down projections in the layers that get more bits.
GGUF_MIXES = {
    "q2_k": ("Q2_K", "Q3_K"),
    "q3_k_s": ("Q3_K", "Q3_K"),
    "q3_k_m": ("Q3_K", "Q4_K"),
    "q3_k_l": ("Q3_K", "Q5_K"),
    "q4_0": ("Q4_0", "Q4_0"),
    "q4_1": ("Q4_1", "Q4_1"),
    "q4_k_s": ("Q4_K", "Q4_K"),
    "q4_k_m": ("Q4_K", "Q6_K"),
    "q5_0": ("Q5_0", "Q5_0"),
    "q5_1": ("Q5_1", "Q5_1"),
    "q5_k_s": ("Q5_K", "Q5_K"),
    "q5_k_m": ("Q5_K", "Q6_K"),
    "q6_k": ("Q6_K", "Q6_K"),
    "q8_0": ("Q8_0", "Q8_0"),
    "iq1_s": ("IQ1_S", "Q2_K"),
    "iq1_m": ("IQ1_M", "Q2_K"),
    "iq2_xxs": ("IQ2_XXS", "Q2_K"),
    "iq2_xs": ("IQ2_XS", "Q2_K"),
    "iq2_s": ("IQ2_S", "Q3_K"),
    "iq3_xxs": ("IQ3_XXS", "Q4_K"),
    "iq3_s": ("IQ3_S", "Q4_K"),
    "iq4_nl": ("IQ4_NL", "Q5_K"),
    "iq4_xs": ("IQ4_XS", "Q5_K"),
}
# Mixes whose second type is that of all down and output projections, with the type of values.
WHOLE_MIXES = {"q2_k": "Q4_K", "q3_k_m": "Q4_K", "q3_k_l": "Q5_K"}
PLAIN = ("bf16", "fp16", "none", "fp32")
SYNONYMS = {
    "q4": "q4_k_m",
    "q5": "q5_k_m",
    "q6": "q6_k",
    "q8": "q8_0",
    "q2": "q2_k",
    "q3": "q3_k_m",
    "bnb": "bitsandbytes",
}
QUANTIZATIONS = (*PLAIN, *METHODS, *GGUF_MIXES)
GGUF_HEAD = "Q6_K"
GGUF_TIED_BITS = bits_of(GGUF_HEAD)
WHOLE_TYPES = ("Q8_0", "Q6_K")
# llama.cpp gives the values of Llama's models with this number of layers more bits: they serve many queries each.
LLAMA_70B_LAYERS, SMALL_TYPES = 80, ("Q3_K", "Q4_K")
FULL_BITS, NORM_BITS = 16.0, 32.0
WIDE_BITS, WIDE_DTYPE = 32.0, "float32"
MIN_MATRIX_PARAMS = 1024


def requantized(shape: ModelShape, name: str) -> ModelShape:
    """Store the linear weights of ``shape`` as ``name`` says (``awq``, ``q4_k_m``, ``bf16``); caches stay.

    Weights that the files keep unquantized count as 16 bits, as before; with ``fp32`` all have 32. A second call
    returns the same shape, with all that was counted of it.
    Raises UserInputError for an unknown name.
    """
    wanted = SYNONYMS.get(name.lower(), name.lower()).replace(" ", "_")
    return shape.once(("requantized", wanted), lambda: _requantized(shape, wanted, name))


def _requantized(shape: ModelShape, wanted: str, name: str) -> ModelShape:
    plain = _each_weight(replace(shape, quantization="", kv_cache_dtype=""), _plain)
    if wanted == "fp32":
        return replace(_each_weight(plain, lambda weight: replace(weight, bits=WIDE_BITS)), dtype=WIDE_DTYPE)
    if wanted in PLAIN:
        return plain
    if wanted in METHODS:
        ends = wanted.startswith("mlx")
        scheme = Quantization(name=wanted, rules=(Rule(form=METHODS[wanted]),), ends=ends)
        return replace(quantize(plain, scheme), quantization=wanted)
    if wanted in GGUF_MIXES:
        return _gguf(plain, wanted)
    near = nearest_names(name, QUANTIZATIONS)
    raise UserInputError(
        f"unknown quantization {name!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(QUANTIZATIONS)}",
    )


def widened(shape: ModelShape) -> ModelShape:
    """Return ``shape`` as an engine that computes in fp32 holds it: 16-bit numbers take 32, quantized ones stay."""
    if shape.dtype == WIDE_DTYPE:
        return shape
    return replace(_each_weight(shape, _wide), dtype=WIDE_DTYPE)


def _wide(weight: Weight) -> Weight:
    return replace(weight, bits=WIDE_BITS) if weight.bits == FULL_BITS else weight


def _plain(weight: Weight) -> Weight:
    return replace(weight, bits=FULL_BITS, group=0, row_group=0)


def _each_weight(shape: ModelShape, change: Callable[[Weight], Weight]) -> ModelShape:
    def changed(weight: Weight | None) -> Weight | None:
        return None if weight is None else change(weight)

    known: dict[int, Layer] = {}
    for layer in shape.layers:
        if id(layer) not in known:
            known[id(layer)] = replace(layer, weights=tuple(change(weight) for weight in layer.weights))
    return replace(
        shape,
        layers=share_equal_layers(known[id(layer)] for layer in shape.layers),
        embedding=changed(shape.embedding),
        head=changed(shape.head),
        others=tuple(change(weight) for weight in shape.others),
    )


def _gguf(shape: ModelShape, name: str) -> ModelShape:
    """Mix types as llama.cpp's ``quantize`` does.

    Values and down projections of an eighth of the layers at both ends, and of every third layer between, get more
    bits (of all layers in ``WHOLE_MIXES``); the head is Q6_K; norms and routers are fp32.
    """
    base, better = GGUF_MIXES[name]
    count = len(shape.layers)
    whole = WHOLE_MIXES.get(name, "")
    values = whole or base
    if count == LLAMA_70B_LAYERS and "Llama" in shape.architecture and values in SMALL_TYPES:
        values = "Q5_K"
    usual, more = (base, base, values), (base, better, better)
    if whole:
        usual = more = (better, better, values)
    layers = [
        replace(
            layer,
            weights=tuple(
                _gguf_weight(weight, base, *(more if _more(index, count) else usual)) for weight in layer.weights
            ),
        )
        for index, layer in enumerate(shape.layers)
    ]
    head_bits = bits_of(base) if base in WHOLE_TYPES else GGUF_TIED_BITS
    ends = [
        None if weight is None else replace(weight, bits=bits)
        for weight, bits in ((shape.embedding, head_bits if shape.tied else bits_of(base)), (shape.head, head_bits))
    ]
    return replace(
        shape, layers=share_equal_layers(layers), embedding=ends[0], head=ends[1], dtype="float16", quantization=name
    )


def _more(index: int, count: int) -> bool:
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def _gguf_weight(weight: Weight, base: str, out: str, down: str, value: str) -> Weight:
    if weight.columns == 1 or weight.part in ("norm", "router") or weight.rows * weight.columns < MIN_MATRIX_PARAMS:
        return replace(weight, bits=NORM_BITS)
    special = {"v_proj": value, "down_proj": down, "o_proj": out}
    chosen = next((of for ending, of in special.items() if weight.name.endswith(ending)), base)
    return replace(weight, bits=bits_of(chosen))
