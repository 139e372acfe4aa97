"""Reads from SGLang's arguments what planning needs of its memory, and what makes the memory unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.core.plan import EngineMemory
from longboat.engines.extra_arguments import number_in, with_types
from longboat.engines.load_formats import FLAG, is_as_planned
from longboat.engines.sglang.flags import ARGUMENTS

__all__ = ("CPU_MEMORY", "CPU_PAGE", "CPU_REQUESTS", "CPU_TOKENS", "memory_of")

CPU_TOKENS = 8192
"""Room of the cache on CPUs, in tokens."""
CPU_REQUESTS = 8
"""Requests at once on CPUs."""
CPU_PAGE = 16
"""Tokens of a page on CPUs."""
CPU_MEMORY = EngineMemory(
    weight_bits=32, kv_bits=32, cache_tokens=CPU_TOKENS, sequences=CPU_REQUESTS, block_tokens=CPU_PAGE, graphs=False
)
UNKNOWN = (
    "--quantization",
    "--cpu-offload-gb",
    "--offload-group-size",
    "--json-model-override-args",
    FLAG,
    "--speculative-algorithm",
    "--enable-hierarchical-cache",
)
"""Flags with which SGLang takes more or less memory than the model's files say."""
CACHE_BITS = {"fp8_e4m3": 8, "fp8_e5m2": 8, "bfloat16": 16, "bf16": 16, "auto": 0}


def memory_of(args: Sequence[str], defaults: EngineMemory) -> EngineMemory:
    """Apply the arguments to ``defaults``.

    ``--dtype`` sets the bits of weights and cache, ``--kv-cache-dtype`` those of the cache alone.
    """
    text, number, flags = ARGUMENTS.text, ARGUMENTS.number, ARGUMENTS.flags(args)
    without_graphs = {"--disable-cuda-graph", "--disable-decode-cuda-graph"} & flags
    told = replace(
        with_types(defaults, text("--dtype", args), text("--kv-cache-dtype", args), CACHE_BITS),
        cache_tokens=number("--max-total-tokens", args) or defaults.cache_tokens,
        memory_ratio=number_in(text("--mem-fraction-static", args)),
        sequences=number("--max-running-requests", args) or defaults.sequences,
        batched_tokens=number("--chunked-prefill-size", args) or defaults.batched_tokens,
        block_tokens=number("--page-size", args) or defaults.block_tokens,
        graphs=defaults.graphs and not without_graphs,
    )
    without = {FLAG} if is_as_planned(text(FLAG, args)) else set()
    return replace(told, unknown=(*told.unknown, *sorted(flags & set(UNKNOWN) - without)))
