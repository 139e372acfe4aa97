"""The arguments with which SGLang makes room for LoRA adapters."""

from __future__ import annotations

from longboat.core.plan import AdapterRoom

__all__ = ("adapter_arguments",)

_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Matrices that adapters may change; embedding and head are refused when an adapter is read."""
_CPU_BACKEND = "torch_native"


def adapter_arguments(room: AdapterRoom | None, on_cpu: bool) -> list[str]:
    """Return the arguments for a room; none without one.

    In SGLang, requests for the model itself take a slot of the batch, too.
    """
    if room is None:
        return []
    slots = room.slots + 1
    args = ["--enable-lora", "--max-loras-per-batch", str(slots), "--max-loaded-loras", str(max(slots, room.held))]
    args += ["--max-lora-rank", str(room.rank), "--lora-target-modules", *_MATRICES]
    return [*args, "--lora-backend", _CPU_BACKEND] if on_cpu else args
