"""The terms that the time of a pass consists of, each with its default constant and where that comes from.

A pass of the engine (one decode step, or one prompt) costs ``sum(constant x quantity)``. A quantity is an ideal time in
seconds (bytes / bandwidth, operations / peak) or a count; a constant is the inverse of an efficiency, or seconds for
each. The sum of a term for bytes and one for operations is an efficiency curve: it tends to the memory roof for few
tokens and to the compute roof for many, and loses up to half of the speed where both meet, as real kernels do.

Sources of the defaults: GEMM and all-reduce timings of ai-dynamo/aiconfigurator (vLLM 0.24 kernels on A100, H100, H200,
B200, L40S, RTX PRO 6000: 0.73-0.81 of the memory bandwidth, 0.56-0.85 of the peak), serving residuals of 43 us a layer
(vLLM and SGLang, 8B on H100); the rest are our estimates from the number of kernels in a layer, at 5 us each under a
CUDA graph and 10 us without. What ranks on processors need for a call or a hop beside the link's own latency is our
measurement with Gloo (docs/benchmarks/planner.md).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("DECODE", "DEFAULTS", "LOAD", "PREFILL", "TERMS", "Term", "defaults_for")


@dataclass(frozen=True)
class Term:
    """One term of the time model."""

    name: str
    default: float
    stiffness: float = 1.0  # how hard calibration holds its constant near the default; 1 is usual


# What ``work`` counts for one decode step.
DECODE = (
    Term("decode_read_weights", 1.3),
    Term("decode_read_experts", 1.5),
    Term("decode_unpack_experts", 0.3),
    Term("decode_multiply", 1.5),
    Term("decode_multiply_experts", 2.0),
    Term("decode_read_cache", 1.3),
    Term("decode_attend", 3.0),
    Term("decode_activations", 1.5),
    Term("decode_layer", 43e-6),
    Term("decode_expert_layer", 20e-6),
    Term("decode_state_layer", 25e-6),
    Term("decode_latent_layer", 45e-6),
    Term("decode_indexer_layer", 60e-6),
    Term("decode_link_latency", 1.0),
    Term("decode_link_bytes", 2.0),
    Term("decode_link_call", 5e-4),
    Term("decode_link_hop", 2e-3),
    Term("decode_step", 5e-4),
    Term("decode_sequence", 1e-5),
)
# The same for one prompt.
PREFILL = (
    Term("prefill_read_weights", 0.3),
    Term("prefill_read_experts", 0.5),
    Term("prefill_unpack_experts", 0.3),
    Term("prefill_multiply", 1.5, 15.0),
    Term("prefill_multiply_experts", 2.5, 0.3),
    Term("prefill_attend", 2.0, 15.0),
    Term("prefill_activations", 2.0, 15.0),
    Term("prefill_layer", 50e-6, 15.0),
    Term("prefill_expert_layer", 100e-6, 0.3),
    Term("prefill_state_layer", 200e-6),
    Term("prefill_latent_layer", 50e-6),
    Term("prefill_indexer_layer", 100e-6),
    Term("prefill_link_latency", 1.0, 15.0),
    Term("prefill_link_bytes", 1.5, 15.0),
    Term("prefill_link_call", 5e-4),
    Term("prefill_link_hop", 2e-3),
)
# Under load: how much of other requests' prefill a token waits for, and of what the first token waits for.
LOAD = (
    Term("interference", 1.0, 30.0),
    Term("floor", 0.04, 0.03),
    Term("wait", 1.0, 30.0),
    Term("first_steps", 1.0, 0.3),
)
TERMS = (*DECODE, *PREFILL, *LOAD)
DEFAULTS = {term.name: term.default for term in TERMS}
# What differs where vLLM computes with fp32 on a processor, eagerly: no graph hides the time of small operations, and
# Gloo's sockets fill the wire, whose own losses the catalog has.
PROCESSOR = {
    "decode_link_bytes": 1.0,
    "prefill_link_bytes": 1.0,
    "decode_layer": 1.0e-3,
    "decode_step": 4.0e-3,
    "decode_sequence": 3.0e-4,
    "prefill_layer": 1.0e-3,
}


def defaults_for(kernel: str) -> dict[str, float]:
    """Return the default constants for a kind of kernels (``kernels.kernel_class``)."""
    return DEFAULTS | PROCESSOR if kernel.endswith("/fp32") else dict(DEFAULTS)
