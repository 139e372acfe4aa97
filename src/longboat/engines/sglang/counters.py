"""Reads SGLang's metrics: load, times to first tokens and between tokens, token counts."""

from __future__ import annotations

from longboat.engines.contract import EngineCounters, LoadMetrics
from longboat.engines.metrics import read_samples, total_of

__all__ = ("LOAD_METRICS", "of_first_stage", "read_counters")

LOAD_METRICS = LoadMetrics(
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    kv_cache_used_ratio="sglang:token_usage",
    prompt_tokens="sglang:prompt_tokens_total",
    generation_tokens="sglang:generation_tokens_total",
)
ITL, TTFT = "sglang:inter_token_latency_seconds", "sglang:time_to_first_token_seconds"
CACHE = "sglang:max_total_num_tokens"
_STAGE, _FIRST_STAGE = 'pp_rank="', 'pp_rank="0"'


def of_first_stage(metrics_text: str) -> str:
    """Return the metrics without those of later pipeline stages, which repeat the first one's."""
    lines = metrics_text.splitlines(keepends=True)
    return "".join(line for line in lines if _STAGE not in line or _FIRST_STAGE in line)


def read_counters(metrics_text: str) -> EngineCounters:
    """Add up the totals. SGLang's cache is counted in tokens, so a block is one token."""
    samples = [sample for sample in read_samples(of_first_stage(metrics_text)) if sample.name.startswith("sglang:")]
    tokens = int(total_of(samples, CACHE) or 0)
    return EngineCounters(
        kv_blocks=tokens or None,
        block_tokens=1 if tokens else None,
        itl_s=total_of(samples, f"{ITL}_sum") or 0.0,
        num_itl=int(total_of(samples, f"{ITL}_count") or 0),
        ttft_s=total_of(samples, f"{TTFT}_sum") or 0.0,
        num_ttft=int(total_of(samples, f"{TTFT}_count") or 0),
        prompt_tokens=int(total_of(samples, LOAD_METRICS.prompt_tokens) or 0),
        generation_tokens=int(total_of(samples, LOAD_METRICS.generation_tokens) or 0),
    )
