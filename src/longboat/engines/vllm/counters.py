"""Reads vLLM's metrics: load, cache blocks, times to first tokens and between tokens, token counts."""

from __future__ import annotations

from longboat.engines.contract import EngineCounters, LoadMetrics
from longboat.engines.metrics import Sample, read_samples, total_of

__all__ = ("LOAD_METRICS", "read_counters")

LOAD_METRICS = LoadMetrics(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv_cache_used_ratio="vllm:kv_cache_usage_perc",
    prompt_tokens="vllm:prompt_tokens_total",
    generation_tokens="vllm:generation_tokens_total",
)
ITL, TTFT = "vllm:inter_token_latency_seconds", "vllm:time_to_first_token_seconds"


def read_counters(metrics_text: str) -> EngineCounters:
    """Add up the totals of all engines of the server. Blocks are those of the first: the others have as many."""
    samples = _samples(metrics_text)
    cache = next((sample.labels for sample in samples if sample.name == "vllm:cache_config_info"), {})
    return EngineCounters(
        kv_blocks=_count(cache.get("num_gpu_blocks", "")),
        block_tokens=_count(cache.get("block_size", "")),
        itl_s=_total(samples, f"{ITL}_sum"),
        num_itl=int(_total(samples, f"{ITL}_count")),
        ttft_s=_total(samples, f"{TTFT}_sum"),
        num_ttft=int(_total(samples, f"{TTFT}_count")),
        prompt_tokens=int(_total(samples, "vllm:prompt_tokens_total")),
        generation_tokens=int(_total(samples, "vllm:generation_tokens_total")),
    )


def _samples(metrics_text: str) -> list[Sample]:
    return [sample for sample in read_samples(metrics_text) if sample.name.startswith("vllm:")]


def _total(samples: list[Sample], name: str) -> float:
    return total_of(samples, name) or 0.0


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
