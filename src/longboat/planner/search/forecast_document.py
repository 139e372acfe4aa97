"""A forecast as plain values, to be compared later with what was measured."""

from __future__ import annotations

from typing import Any

from longboat.planner.search.forecast import Forecast

__all__ = ("planned_values",)


def planned_values(forecast: Forecast, source: str) -> dict[str, Any]:
    """Return values of JSON. Times are of one replica; bytes of its fullest rank; kv_blocks None: not known."""
    layout, demand, told = forecast.layout, forecast.demand, forecast.outcome
    settings = demand.settings
    return {
        "model": forecast.shape.name,
        "source": source,
        "hardware": layout.hardware,
        # Rows name a model without a format on processors by the bits that the engine computes with there.
        "quantization": forecast.shape.quantization or ("fp32" if settings.weight_bits == 32 else ""),
        "tensor": layout.tensor,
        "pipeline": len(layout.places),
        "link": layout.places[0].link.name if layout.tensor > 1 else "",
        "hop": layout.hop.name if len(layout.places) > 1 else "",
        "replicas": layout.replicas,
        "users": round(forecast.users, 3),
        "prompt_tokens": demand.prompt_tokens,
        "output_tokens": demand.output_tokens,
        "fits": forecast.fit.fits,
        "kv_blocks": forecast.kv_blocks,
        "block_tokens": settings.block_tokens,
        "rank_bytes": forecast.rank_bytes,
        "itl_s": told.itl_s.value if told else None,
        "ttft_s": told.ttft_s.value if told else None,
        "tokens_per_s": round(forecast.tokens_per_s, 3),
        "provenance": told.itl_s.provenance if told else "",
        "curve": [list(point) for point in forecast.curve],
    }
