"""Reads from vLLM's arguments what planning needs of its memory, and what makes the memory unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.core.plan import EngineMemory
from longboat.engines.extra_arguments import number_in, with_types
from longboat.engines.load_formats import FLAG, is_as_planned
from longboat.engines.vllm.flags import ARGUMENTS, is_on, number_given
from longboat.engines.vllm.speculation import NEEDS_NO_MEMORY

__all__ = ("memory_of",)

UNKNOWN = (
    "--quantization",
    "--cpu-offload-gb",
    "--hf-overrides",
    "--hf-config-path",
    FLAG,
    "--kv-transfer-config",
    "--kv-offloading-size",
    "--num-gpu-blocks-override",
    "--speculative-config",
    "--additional-config",
    "--prefill-context-parallel-size",
    "--decode-context-parallel-size",
)
"""Flags with which vLLM takes more or less memory than the model's files say."""
CACHE_BITS = {"fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "bfloat16": 16, "auto": 0}


def memory_of(args: Sequence[str], defaults: EngineMemory) -> EngineMemory:
    """Apply the arguments to ``defaults``.

    ``--dtype`` sets the bits of weights and cache, ``--kv-cache-dtype`` those of the cache alone.
    """
    text, flags = ARGUMENTS.text, ARGUMENTS.flags(args)
    ratio = number_in(text("--gpu-memory-utilization", args))
    told = replace(
        with_types(defaults, text("--dtype", args), text("--kv-cache-dtype", args), CACHE_BITS),
        cache_bytes=number_given("--kv-cache-memory-bytes", args) or (0 if ratio else defaults.cache_bytes),
        memory_ratio=ratio,
        sequences=number_given("--max-num-seqs", args) or defaults.sequences,
        batched_tokens=number_given("--max-num-batched-tokens", args) or defaults.batched_tokens,
        block_tokens=number_given("--block-size", args) or defaults.block_tokens,
        graphs=defaults.graphs and not is_on("--enforce-eager", args),
    )
    without = {"--speculative-config"} if NEEDS_NO_MEMORY in text("--speculative-config", args) else set()
    without |= {FLAG} if is_as_planned(text(FLAG, args)) else set()
    return replace(told, unknown=(*told.unknown, *sorted(flags & set(UNKNOWN) - without)))
