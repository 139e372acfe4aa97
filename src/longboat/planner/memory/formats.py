"""Which formats of weights an engine computes, and which of its own comes nearest to one that it does not."""

from __future__ import annotations

from dataclasses import replace

from longboat.catalog.entries import Accelerator, Engine
from longboat.catalog.formats.gguf_types import GGUF_TYPES
from longboat.catalog.quantization.requantize import GGUF_MIXES, requantized
from longboat.catalog.shape.model_shape import ModelShape

__all__ = ("as_computed", "computes", "is_gguf", "lacks_kernels")

# What the catalog calls a family of formats.
FAMILIES = {"fp8-tensor": "fp8", "gptq-int8": "gptq", "int8": "compressed-tensors"}
PLAIN = ("", "bf16", "fp16", "none", "f16", "f32")
# What GGUF alone has: mixes, and the types of tensors, by which a file is known. Others are formats of engines, too.
GGUF_FORMATS = {*GGUF_MIXES, *(kind.name.lower() for kind in GGUF_TYPES.values())} - {*PLAIN, "mxfp4", "nvfp4"}
# Of these the engine's own come nearest, by the bits of a number: from as many bits on, the first that it computes.
NEAREST = ((7.9, ("fp8", "q8_0", "mlx-8bit")), (5.9, ("fp8", "q6_k", "mlx-8bit")), (0.0, ("awq", "q4_k_m", "mlx-4bit")))
# The least compute capability of the kernels, times ten: ``get_min_capability`` in vLLM 0.32's layers/quantization.
MIN_CAPABILITY = {
    "fp8": 75,
    "fp8-tensor": 75,
    "awq": 75,
    "gptq": 60,
    "gptq-int8": 60,
    "nvfp4": 75,
    "mxfp4": 80,
    "bitsandbytes": 70,
}


def lacks_kernels(card: Accelerator, quantization: str) -> str:
    """Return why vLLM and SGLang cannot multiply such weights on the card; ``""`` where they can, or it is unknown."""
    if quantization == "nvfp4" and card.vendor != "nvidia":
        return f"kernels for nvfp4 run on NVIDIA's cards alone, not on {card.name}"
    least = MIN_CAPABILITY.get(quantization, 0)
    if not 0 < card.compute_capability < least:
        return ""
    return (
        f"kernels for {quantization} need compute capability {least / 10:.1f}, and {card.name} has "
        f"{card.compute_capability / 10:.1f}"
    )


def computes(engine: Engine, quantization: str) -> bool:
    """Return whether the engine takes weights in that format."""
    return quantization in PLAIN or _family(quantization) in engine.quantizations


def is_gguf(quantization: str) -> bool:
    """Return whether only GGUF files have weights in that format."""
    return quantization in GGUF_FORMATS


def as_computed(shape: ModelShape, engine: Engine) -> ModelShape:
    """Return the model in the engine's format that is nearest to how it is stored, marked where that is another."""
    if computes(engine, shape.quantization):
        return shape
    bits = min((weight.bits for weight in shape.layers[-1].weights if weight.columns > 1), default=16.0)
    names = next(names for least, names in NEAREST if bits >= least)
    name = next((name for name in names if computes(engine, name)), "bf16")
    reason = f"weights: {engine.name} computes no {shape.quantization}: counted in {name}"
    other = requantized(shape, name)
    return replace(other, estimate=(*other.estimate, reason))


def _family(quantization: str) -> str:
    if is_gguf(quantization):
        return "gguf"
    return "mlx" if quantization.startswith("mlx") else FAMILIES.get(quantization, quantization)
