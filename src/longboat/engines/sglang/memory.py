"""Reads from SGLang's arguments what planning needs of its memory, and what makes the memory unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.core.plan import EngineMemory
from longboat.engines.sglang.flags import flags_of, number_given, text_given

__all__ = ("CPU_MEMORY", "CPU_REQUESTS", "CPU_TOKENS", "memory_of")

CPU_TOKENS = 8192
"""Room of the cache on CPUs, in tokens."""
CPU_REQUESTS = 8
"""Requests at once on CPUs."""
CPU_MEMORY = EngineMemory(
    weight_bits=32, kv_bits=32, cache_tokens=CPU_TOKENS, sequences=CPU_REQUESTS, block_tokens=1, graphs=False
)
UNKNOWN = (
    "--quantization",
    "--cpu-offload-gb",
    "--json-model-override-args",
    "--load-format",
    "--speculative-algorithm",
    "--enable-lora",
    "--enable-hierarchical-cache",
    "--enable-dp-attention",
    "--ep-size",
)
"""Flags with which SGLang takes more or less memory than the model's files say."""
WEIGHT_BITS = {"float32": 32, "float": 32, "auto": 0, "half": 0, "float16": 0, "bfloat16": 0}
CACHE_BITS = {"fp8_e4m3": 8, "fp8_e5m2": 8, "bfloat16": 16, "bf16": 16, "auto": 0}


def memory_of(args: Sequence[str], defaults: EngineMemory) -> EngineMemory:
    """Apply the arguments to ``defaults``.

    ``--dtype`` sets the bits of weights and cache, ``--kv-cache-dtype`` those of the cache alone.
    """
    without_graphs = {"--disable-cuda-graph", "--disable-decode-cuda-graph"} & flags_of(args)
    told = replace(
        _with_types(defaults, args),
        cache_tokens=number_given("--max-total-tokens", args) or defaults.cache_tokens,
        memory_ratio=_number(text_given("--mem-fraction-static", args)),
        sequences=number_given("--max-running-requests", args) or defaults.sequences,
        batched_tokens=number_given("--chunked-prefill-size", args) or defaults.batched_tokens,
        block_tokens=number_given("--page-size", args) or defaults.block_tokens,
        graphs=defaults.graphs and not without_graphs,
    )
    return replace(told, unknown=(*told.unknown, *sorted(flags_of(args) & set(UNKNOWN))))


def _with_types(defaults: EngineMemory, args: Sequence[str]) -> EngineMemory:
    dtype, cache = text_given("--dtype", args), text_given("--kv-cache-dtype", args)
    unknown = [f"--dtype {dtype}"] if dtype and dtype not in WEIGHT_BITS else []
    unknown += [f"--kv-cache-dtype {cache}"] if cache and cache not in CACHE_BITS else []
    weight_bits = WEIGHT_BITS.get(dtype, 0) if dtype else defaults.weight_bits
    kv_bits = defaults.kv_bits if not dtype else weight_bits or 16
    return replace(
        defaults, weight_bits=weight_bits, kv_bits=CACHE_BITS.get(cache, 0) or kv_bits, unknown=tuple(unknown)
    )


def _number(text: str) -> float:
    """Return the number in ``text``; 0 where there is none."""
    try:
        return float(text)
    except ValueError:
        return 0.0
