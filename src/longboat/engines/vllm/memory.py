"""Reads from vLLM's arguments what planning needs of its memory, and what makes the memory unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.core.plan import EngineMemory
from longboat.engines.extra_arguments import number_in, with_types
from longboat.engines.load_formats import FLAG, is_as_planned
from longboat.engines.vllm.flags import ARGUMENTS, is_on
from longboat.engines.vllm.speculation import needs_memory

__all__ = ("memory_of",)

UNKNOWN = (
    "--quantization",
    "--quantization-config",
    "--cpu-offload-gb",
    "--offload-group-size",
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
CACHE_BITS = {"fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "bfloat16": 16, "float16": 16, "auto": 0}


def memory_of(args: Sequence[str], defaults: EngineMemory) -> EngineMemory:
    """Apply the arguments to ``defaults``.

    ``--dtype`` sets the bits of weights and cache, ``--kv-cache-dtype`` those of the cache alone.
    """
    text, number, flags = ARGUMENTS.text, ARGUMENTS.number, ARGUMENTS.flags(args)
    ratio = number_in(text("--gpu-memory-utilization", args))
    told = replace(
        with_types(defaults, text("--dtype", args), text("--kv-cache-dtype", args), CACHE_BITS),
        cache_bytes=number("--kv-cache-memory-bytes", args) or (0 if ratio else defaults.cache_bytes),
        memory_ratio=ratio,
        sequences=number("--max-num-seqs", args) or defaults.sequences,
        batched_tokens=number("--max-num-batched-tokens", args) or defaults.batched_tokens,
        block_tokens=number("--block-size", args) or defaults.block_tokens,
        graphs=defaults.graphs and not is_on("--enforce-eager", args),
    )
    without = set() if needs_memory(text("--speculative-config", args)) else {"--speculative-config"}
    without |= {FLAG} if is_as_planned(text(FLAG, args)) else set()
    return replace(told, unknown=(*told.unknown, *sorted(flags & set(UNKNOWN) - without)))
