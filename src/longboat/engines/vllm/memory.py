"""Reads from vLLM's arguments what planning needs of its memory, and what makes the memory unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.core.plan import EngineMemory
from longboat.engines.vllm.flags import flags_of, number_given, text_given

__all__ = ("memory_of",)

UNKNOWN = (
    "--quantization",
    "-q",
    "--cpu-offload-gb",
    "--hf-overrides",
    "--hf-config-path",
    "--load-format",
    "--kv-transfer-config",
    "--kv-offloading-size",
    "--num-gpu-blocks-override",
    "--speculative-config",
    "--enable-lora",
    "--additional-config",
    "--prefill-context-parallel-size",
    "--decode-context-parallel-size",
    "-dcp",
    "--enable-expert-parallel",
)
"""Flags with which vLLM takes more or less memory than the model's files say."""
WEIGHT_BITS = {"float32": 32, "float": 32, "auto": 0, "half": 0, "float16": 0, "bfloat16": 0}
CACHE_BITS = {"fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "bfloat16": 16, "auto": 0}


def memory_of(args: Sequence[str], defaults: EngineMemory) -> EngineMemory:
    """Apply the arguments to ``defaults``.

    ``--dtype`` sets the bits of weights and cache, ``--kv-cache-dtype`` those of the cache alone.
    """
    ratio = _number(text_given("--gpu-memory-utilization", args))
    told = replace(
        _with_types(defaults, args),
        cache_bytes=number_given("--kv-cache-memory-bytes", args) or (0 if ratio else defaults.cache_bytes),
        memory_ratio=ratio,
        sequences=number_given("--max-num-seqs", args) or defaults.sequences,
        batched_tokens=number_given("--max-num-batched-tokens", args) or defaults.batched_tokens,
        block_tokens=number_given("--block-size", args) or defaults.block_tokens,
        graphs=defaults.graphs and "--enforce-eager" not in flags_of(args),
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
