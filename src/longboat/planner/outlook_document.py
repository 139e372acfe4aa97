"""An outlook as plain values, for whoever compares it later with what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from longboat.planner.outlook import Asked, Outlook

__all__ = ("at_users", "planned_values")


def planned_values(outlook: Outlook) -> dict[str, Any]:
    """Values of JSON. Times are of one replica; bytes of its fullest rank; kv_blocks None where nobody knows."""
    asked, gang, demand, told = outlook.asked, outlook.gang, outlook.asked.demand, outlook.prediction
    return {
        "model": asked.shape.name,
        "source": asked.spec.source,
        "hardware": outlook.ground.title,
        "quantization": _form(asked),
        "tensor": gang.tensor,
        "pipeline": gang.pipeline,
        "link": outlook.link.name if gang.tensor > 1 else "",
        "hop": outlook.hop.name if gang.pipeline > 1 else "",
        "replicas": outlook.replicas,
        "users": round(outlook.users, 3),
        "prompt_tokens": demand.prompt_tokens,
        "output_tokens": demand.output_tokens,
        "fits": outlook.fit.fits,
        "kv_blocks": outlook.kv_blocks,
        "block_tokens": asked.memory.block_tokens,
        "rank_bytes": outlook.rank_bytes,
        "itl_s": told.itl_s.value if told else None,
        "ttft_s": told.ttft_s.value if told else None,
        "tokens_per_s": round(outlook.tokens_per_s, 3),
        "provenance": told.itl_s.provenance if told else "",
        "curve": [list(point) for point in outlook.curve],
    }


def _form(asked: Asked) -> str:
    """As measured rows name it: of a quantized model on a processor only the other weights have 32 bits there."""
    return asked.shape.quantization or ("fp32" if asked.memory.weight_bits == 32 else "")


def at_users(planned: Mapping[str, Any], users: float) -> tuple[float, float] | None:
    """ITL and TTFT in seconds of a replica with so many users, between those that were predicted; None: none were."""
    curve = [(float(point[0]), float(point[1]), float(point[2])) for point in planned.get("curve", ())]
    if not curve:
        return None
    below = max((point for point in curve if point[0] <= users), default=curve[0])
    above = min((point for point in curve if point[0] >= users), default=curve[-1])
    if below[0] >= above[0]:
        return below[1], below[2]
    share = log(max(1.0, users) / below[0]) / log(above[0] / below[0])
    itl_s, ttft_s = (low * (high / low) ** share for low, high in zip(below[1:], above[1:], strict=True))
    return itl_s, ttft_s
