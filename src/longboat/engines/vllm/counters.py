"""vLLM's metrics of what was measured: cache blocks, times to first tokens and between tokens, tokens."""

from __future__ import annotations

from longboat.engines.contract import EngineCounters
from longboat.engines.metrics import Sample, read_samples, total_of

__all__ = ("read_counters",)

PREFIX = "vllm:"
ITL, TTFT = "vllm:inter_token_latency_seconds", "vllm:time_to_first_token_seconds"


def read_counters(metrics_text: str) -> EngineCounters:
    """Sums over all engines of the server; blocks of the first, of which the others have as many."""
    samples = [sample for sample in read_samples(metrics_text) if sample.name.startswith(PREFIX)]
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


def _total(samples: list[Sample], name: str) -> float:
    return total_of(samples, name) or 0.0


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
