"""The fake engine's counters, printed under vLLM's metric names in Prometheus text."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

__all__ = ("EngineMetrics", "Histogram")

_TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
)  # fmt: skip
_ITL_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)


@dataclass(slots=True)
class Histogram:
    """Counts of observed seconds per bucket; the last count is everything above the last edge."""

    edges_s: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges_s) + 1)

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.edges_s, seconds)] += 1
        self.sum_s += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        running = list(accumulate(self.counts))
        edges = [*(str(edge) for edge in self.edges_s), "+Inf"]
        buckets = [f'{name}_bucket{{{labels},le="{edge}"}} {n}.0' for edge, n in zip(edges, running, strict=True)]
        totals = [f"{name}_count{{{labels}}} {running[-1]}.0", f"{name}_sum{{{labels}}} {self.sum_s}"]
        return [f"# TYPE {name} histogram", *buckets, *totals]


@dataclass(slots=True)
class EngineMetrics:
    """The engine's counters. Gauges are read from the scheduler when the text is made."""

    model: str
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    ttft: Histogram = field(default_factory=lambda: Histogram(_TTFT_BUCKETS_S))
    itl: Histogram = field(default_factory=lambda: Histogram(_ITL_BUCKETS_S))

    def text(self, *, running: int, waiting: int, kv_used_ratio: float, num_blocks: int, block_tokens: int) -> str:
        """Return the Prometheus text exposition."""
        labels = f'engine="0",model_name="{self.model}"'
        config = f'{labels},block_size="{block_tokens}",num_gpu_blocks="{num_blocks}"'
        lines = [
            *_metric("vllm:num_requests_running", "gauge", labels, running),
            *_metric("vllm:num_requests_waiting", "gauge", labels, waiting),
            *_metric("vllm:kv_cache_usage_perc", "gauge", labels, kv_used_ratio),
            *_metric("vllm:cache_config_info", "gauge", config, 1),
            *_metric("vllm:prompt_tokens_total", "counter", labels, self.prompt_tokens),
            *_metric("vllm:generation_tokens_total", "counter", labels, self.generation_tokens),
            *_metric("vllm:prefix_cache_queries_total", "counter", labels, self.prefix_queries_tokens),
            *_metric("vllm:prefix_cache_hits_total", "counter", labels, self.prefix_hits_tokens),
            "# TYPE vllm:request_success_total counter",
            *(
                f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(count)}'
                for reason, count in self.finished.items()
            ),
            *self.ttft.lines("vllm:time_to_first_token_seconds", labels),
            *self.itl.lines("vllm:inter_token_latency_seconds", labels),
        ]
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, labels: str, value: float) -> list[str]:
    return [f"# TYPE {name} {kind}", f"{name}{{{labels}}} {float(value)}"]
