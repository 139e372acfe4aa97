"""Tests of what vLLM's arguments say about memory, and of the reading of its metrics."""

from __future__ import annotations

import pytest

from longboat.core.plan import EngineMemory
from longboat.engines.contract import EngineCounters
from longboat.engines.vllm.adapter import VllmAdapter

MIB = 1024**2
METRICS = """
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="512"} 1.0
vllm:inter_token_latency_seconds_sum{engine="0"} 2.5
vllm:inter_token_latency_seconds_count{engine="0"} 100.0
vllm:time_to_first_token_seconds_sum{engine="0"} 0.5
vllm:time_to_first_token_seconds_count{engine="0"} 4.0
vllm:prompt_tokens_total{engine="0"} 400.0
vllm:generation_tokens_total{engine="0"} 104.0
"""


def memory(*args: str, platform: str = "cuda") -> EngineMemory:
    return VllmAdapter().memory(args, platform)


def test_defaults_of_a_cpu_are_float32_and_a_small_cache() -> None:
    told = memory(platform="cpu")
    assert (told.weight_bits, told.kv_bits, told.cache_bytes, told.sequences) == (32, 32, 64 * MIB, 8)
    assert memory() == EngineMemory()


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (("--kv-cache-memory-bytes=1048576",), "cache_bytes", MIB),
        (("--kv-cache-memory-bytes", "2G"), "cache_bytes", 2 << 30),
        (("--max-num-batched-tokens", "64k"), "batched_tokens", 64000),
        (("--gpu-memory-utilization", "inf"), "memory_ratio", 0.0),
        (("--gpu-memory-utilization", "nan"), "memory_ratio", 0.0),
        (("-q", "fp8"), "unknown", ("--quantization",)),
        (("-pcp", "2"), "unknown", ("--prefill-context-parallel-size",)),
        (("--max-num-seqs", "4"), "sequences", 4),
        (("--gpu-memory-utilization", "0.8"), "memory_ratio", 0.8),
        (("--gpu-memory-utilization=0.8",), "cache_bytes", 0),
        (("--device-memory-utilization", "0.8"), "memory_ratio", 0.8),
        (("--kv-cache-dtype", "float16"), "kv_bits", 16),
        (("--kv-cache-dtype", "float16"), "unknown", ()),
        (("--quantization-config", "{}"), "unknown", ("--quantization-config",)),
        (("--offload-group-size", "8"), "unknown", ("--offload-group-size",)),
        (("--speculative-config", '{"num_speculative_tokens":3,"method":"ngram"}'), "unknown", ()),
        (("--speculative-config", '{"method":"mtp"}'), "unknown", ("--speculative-config",)),
        (("--speculative-config", "method"), "unknown", ("--speculative-config",)),
        (("--dtype", "bfloat16"), "weight_bits", 0),
        (("--dtype", "bfloat16"), "kv_bits", 16),
        (("--kv-cache-dtype", "fp8"), "kv_bits", 8),
        (("--block-size", "64"), "block_tokens", 64),
        (("--quantization", "fp8"), "unknown", ("--quantization",)),
        (("--dtype", "int3"), "unknown", ("--dtype int3",)),
        (("--load-format=runai_streamer",), "unknown", ()),
        (("--load-format", "fastsafetensors"), "unknown", ("--load-format",)),
    ],
)
def test_arguments_win_over_defaults(args: tuple[str, ...], field: str, value: object) -> None:
    assert getattr(memory(*args, platform="cpu"), field) == value


def test_eager_engines_have_no_graphs() -> None:
    assert memory().graphs
    assert not memory("--enforce-eager").graphs
    assert memory("--enforce-eager", "--no-enforce-eager").graphs
    assert not memory("--no_enforce_eager", "--enforce_eager").graphs


def test_metrics_tell_blocks_and_sums() -> None:
    assert VllmAdapter().counters(METRICS) == EngineCounters(
        kv_blocks=512,
        block_tokens=32,
        itl_s=2.5,
        num_itl=100,
        ttft_s=0.5,
        num_ttft=4,
        prompt_tokens=400,
        generation_tokens=104,
    )


def test_metrics_of_another_kind_tell_nothing() -> None:
    assert VllmAdapter().counters("process_cpu_seconds_total 3\n") == EngineCounters()
