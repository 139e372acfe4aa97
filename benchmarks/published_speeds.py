"""Speeds that others published, as far as the time model can express them: decode tokens per second of all requests.

Each says where it was published.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("PUBLISHED", "Published")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published figure. tokens_per_s: output tokens of all requests together while they decode."""

    model: str
    quantization: str
    hardware: str
    engine: str
    tokens_per_s: float
    source: str
    tensor: int = 1
    pipeline: int = 1
    link: str = ""
    concurrency: int = 1
    prompt_tokens: int = 512
    output_tokens: int = 128


def _series(speeds: dict[int, float], degree: str, **fields: object) -> tuple[Published, ...]:
    return tuple(Published(**{**fields, degree: n, "tokens_per_s": speed}) for n, speed in speeds.items())  # type: ignore[arg-type]


def _common(
    source: str, model: str, quantization: str, hardware: str, engine: str, link: str = ""
) -> dict[str, object]:
    return {
        "source": source,
        "model": model,
        "quantization": quantization,
        "hardware": hardware,
        "engine": engine,
        "link": link,
    }


QWEN_235B = "Qwen3-235B-A22B"
PUBLISHED = (
    *_series(
        {1: 17.0, 2: 24.1, 4: 36.4},
        "concurrency",
        tensor=2,
        **_common("conselara.dev, 2026-05", QWEN_235B, "gptq", "GB10", "vllm", "200GbE RoCE"),
    ),
    *_series(
        {1: 57.5},
        "tensor",
        **_common("kubis.ai, 2026-03 (without graphs)", "gpt-oss-120b", "", "GB10", "vllm", "200GbE RoCE"),
    ),
    *_series(
        {1: 69.0, 8: 231.0, 32: 472.0},
        "concurrency",
        tensor=2,
        **_common("kubis.ai, 2026-03 (without graphs)", "gpt-oss-120b", "", "GB10", "vllm", "200GbE RoCE"),
    ),
    *_series({2: 3.0}, "tensor", **_common("vllm-dgx-spark#1", "Llama-3.1-70B", "", "GB10", "vllm", "200GbE RoCE")),
    *_series(
        {1: 19.5, 2: 26.2, 4: 31.9},
        "tensor",
        **_common("exo README", QWEN_235B, "mlx-8bit", "M3 Ultra", "mlx", "Thunderbolt 5 RDMA"),
    ),
    *_series(
        {1: 20.4, 2: 17.2, 4: 15.2},
        "pipeline",
        **_common("exo README", QWEN_235B, "q8_0", "M3 Ultra", "llama.cpp", "Thunderbolt 5"),
    ),
    *_series(
        {2: 21.6, 4: 28.3},
        "tensor",
        **_common("exo README", "Kimi-K2", "mlx-4bit", "M3 Ultra", "mlx", "Thunderbolt 5 RDMA"),
    ),
    *_series(
        {2: 18.5, 4: 16.4},
        "pipeline",
        **_common("exo README", "Kimi-K2", "q4_k_m", "M3 Ultra", "llama.cpp", "Thunderbolt 5"),
    ),
    *_series({1: 14.41}, "pipeline", **_common("beowulf#17", "Llama-3.1-70B", "q4_k_m", "M3 Ultra", "llama.cpp")),
    *_series({1: 20.21}, "pipeline", **_common("beowulf#17", "DeepSeek-R1", "q4_k_m", "M3 Ultra", "llama.cpp")),
    *_series(
        {512: 8.71, 32_768: 3.58},
        "prompt_tokens",
        pipeline=2,
        **_common("kyuz0, results of RPC", "GLM-4.6", "q4_k_m", "Strix Halo", "llama.cpp", "50GbE"),
    ),
    *_series(
        {512: 17.98, 32_768: 6.40},
        "prompt_tokens",
        pipeline=2,
        **_common("kyuz0, results of RPC", "MiniMax-M2.5", "q6_k", "Strix Halo", "llama.cpp", "50GbE"),
    ),
    *_series({1: 56.6}, "pipeline", **_common("kyuz0 (Vulkan)", "gpt-oss-120b", "", "Strix Halo", "llama.cpp")),
    *_series(
        {1: 4.57}, "pipeline", **_common("llmfit, community table", "Llama-3.1-70B", "q4_k_m", "GB10", "llama.cpp")
    ),
    *_series(
        {1: 29.0}, "pipeline", **_common("llmfit, community table", "Qwen3.5-122B-A10B", "q4_k_m", "GB10", "llama.cpp")
    ),
    *_series(
        {1: 63.0}, "pipeline", tensor=2, **_common("llmfit, community table", "Qwen3.5-27B", "awq", "RTX 3090", "vllm")
    ),
    *_series(
        {1: 25.3},
        "pipeline",
        tensor=4,
        **_common("llmfit, community table", "Qwen3-32B", "awq", "T4", "vllm", "PCIe 3 x16"),
    ),
    *_series({4: 4 / 7.38e-3}, "concurrency", **_common("gpustack perf-lab", "Qwen3-8B", "", "H100", "vllm")),
    *_series({4: 4 / 7.19e-3}, "concurrency", **_common("gpustack perf-lab", "Qwen3-8B", "", "H100", "sglang")),
    *_series(
        {4: 4 / 10.3e-3, 64: 64 / 31.1e-3},
        "concurrency",
        tensor=8,
        prompt_tokens=1024,
        output_tokens=1024,
        **_common("aiconfigurator, silicon_sample (not among the fitted rows)", "Kimi-K2.5", "", "H200", "vllm"),
    ),
)
