"""Which multiplication an engine uses for weights of a format on given hardware."""

from __future__ import annotations

from longboat.catalog.quantization.requantize import widened
from longboat.catalog.shape.model_shape import ModelShape
from longboat.catalog.shape.weight import Weight
from longboat.planner.predict.efficiency import multiply_share
from longboat.planner.predict.machine import Machine

__all__ = ("computed_on", "kernel_class", "multiply_bits", "multiply_flops", "unpacks")

# Formats whose numbers the hardware can multiply as they are; all others are widened to 16 bits first.
FLOAT4 = ("nvfp4", "mxfp4")
WIDE_BITS, FULL_BITS, EIGHT_BITS = 30.0, 12.0, 7.9


def multiply_flops(weight: Weight, shape: ModelShape, machine: Machine) -> float:
    """Return operations a second that kernels for ``weight`` reach, as if those of 16 bits reached their peak."""
    bits = multiply_bits(weight, shape, machine)
    peak = {4: machine.flops_4, 8: machine.flops_8, 16: machine.flops_16}[bits]
    return peak * multiply_share(machine, bits)


def multiply_bits(weight: Weight, shape: ModelShape, machine: Machine) -> int:
    """Return the bits of the operands: those of the weights where the hardware multiplies them, else 16."""
    if weight.bits > FULL_BITS:
        return 16
    if weight.bits >= EIGHT_BITS:
        eight = "fp8" in shape.quantization or _float4(shape)
        return 8 if eight and machine.flops_8 > machine.flops_16 else 16
    return 4 if _float4(shape) and machine.native == "fp4" else 16


def unpacks(weight: Weight, shape: ModelShape, machine: Machine) -> bool:
    """Return whether numbers are widened before they are multiplied."""
    return weight.bits <= FULL_BITS and multiply_bits(weight, shape, machine) == 16


def kernel_class(shape: ModelShape, machine: Machine) -> str:
    """Return the name of the kind of kernels that take most time, by which constants are learned (``fp8-block/fp4``).

    Before the slash the format of the weights, after it the narrowest type that the hardware multiplies.
    """
    return shape.once(("kernels", machine.native), lambda: _kernel_class(shape, machine))


def _kernel_class(shape: ModelShape, machine: Machine) -> str:
    heaviest = max(shape.layers[-1].weights, key=lambda weight: weight.num_params)
    if heaviest.bits > WIDE_BITS:
        form = "32"
    elif heaviest.bits > FULL_BITS:
        form = "16"
    elif heaviest.bits >= EIGHT_BITS:
        form = "8" if "fp8" not in shape.quantization else "fp8-block" if heaviest.row_group else "fp8"
    else:
        form = "fp4" if _float4(shape) else "4"
    return f"{form}/{machine.native}"


def _float4(shape: ModelShape) -> bool:
    return any(name in shape.quantization for name in FLOAT4)


def computed_on(machine: Machine, shape: ModelShape) -> ModelShape:
    """Return the weights as the engine holds them there."""
    return widened(shape) if machine.native == "fp32" else shape
