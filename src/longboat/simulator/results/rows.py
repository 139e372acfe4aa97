"""One run as plain values."""

from __future__ import annotations

from longboat.simulator.results.histogram import Histogram
from longboat.simulator.results.result import Result, quantiles

__all__ = ("row_of",)

_DIGITS = 3


def row_of(result: Result) -> dict[str, object]:
    """Return the values of a run; times in milliseconds."""
    p50_s, p99_s = quantiles(result.ttft_s, (0.5, 0.99))
    span_s = result.span_s or 1.0
    return {
        "policy": result.policy,
        "requests": result.requests,
        "ttft_ms": _times(result.mean_ttft_s, p50_s, p99_s),
        "itl_ms": _of(result.itl_s),
        "e2e_ms": _of(result.e2e_s),
        "queue_ms": _of(result.queue_s),
        "cached_share": round(result.cached_share, 6),
        "goodput_per_s": round(result.good / span_s, 6),
        "requests_per_s": round(result.requests / span_s, 6),
        "output_tokens_per_s": round(result.output_tokens / span_s, 3),
        "rejected": result.rejected,
        "too_long": result.too_long,
        "preemptions": result.preemptions,
        "retries": result.retries,
        "simulated_s": round(result.span_s, 3),
        "replicas": [
            {
                "key": one.key,
                "requests": one.requests,
                "busy_share": round(one.busy_s / span_s, 4),
                "cached_share": round(one.cached_tokens / one.prompt_tokens, 4) if one.prompt_tokens else 0.0,
            }
            for one in result.replicas
        ],
    }


def _of(times_s: Histogram) -> dict[str, float]:
    return _times(times_s.mean, times_s.quantile(0.5), times_s.quantile(0.99))


def _times(mean_s: float, p50_s: float, p99_s: float) -> dict[str, float]:
    return {name: round(value * 1e3, _DIGITS) for name, value in (("mean", mean_s), ("p50", p50_s), ("p99", p99_s))}
