"""The traits of engines: how each schedules, and what a hop between stages costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ("ENGINES", "EngineTraits", "engine_traits")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """The properties of an engine that the time model uses."""

    name: str
    # mixed: prompts are computed in chunks beside the decoding of others (vLLM)
    # prefill_first: decoding stands still while prompts are computed (SGLang's default)
    policy: Literal["mixed", "prefill_first"] = "mixed"
    chunk_tokens: int = 8192  # most prompt tokens in one pass
    hop_s: float = 0.0  # time that the engine itself adds to each hop between pipeline stages
    # Bytes of a hop, both ways together, for each number of the hidden state of a token, where numbers have 16 bits
    # between multiplications.
    hop_bytes: float = 4.0
    returns_logits: bool = False  # the last stage sends all logits back to the first (llama.cpp RPC)
    host_calls: bool = False  # on processors, ranks talk through sockets of their hosts (Gloo): each call costs time
    # Whether its stages compute several batches at once. llama.cpp has one batch of all its slots, which passes the
    # stages in turn.
    overlaps_stages: bool = True
    tensor_parallel: bool = True  # whether it splits each layer; else layers only
    mixes_platforms: bool = False  # whether one replica may be on accelerators of several makers
    kv_tiers: bool = True  # whether it loads caches back from RAM or a disk (vLLM with LMCache, SGLang's HiCache)
    poll_steps: float = 1.0  # decode steps between two looks for new requests (SGLang's --scheduler-recv-interval)


# vLLM sends hidden state and residual in 16 bits. llama.cpp and distributed-llama send float32 both ways; the time of a
# synchronous hop is derived from a pair of DGX Spark (2.6 ms) and from Macs on 2.5 GbE (6-9 ms).
ENGINES = {
    "vllm": EngineTraits(name="vllm", hop_s=5e-5, host_calls=True),
    "sglang": EngineTraits(name="sglang", policy="prefill_first", hop_s=5e-5, hop_bytes=2.0, host_calls=True),
    "tensorrt-llm": EngineTraits(name="tensorrt-llm", hop_s=5e-5, hop_bytes=2.0),
    "llama.cpp": EngineTraits(
        name="llama.cpp",
        chunk_tokens=512,
        hop_s=2.6e-3,
        hop_bytes=8.0,
        returns_logits=True,
        overlaps_stages=False,
        tensor_parallel=False,
        kv_tiers=False,
        mixes_platforms=True,
    ),
    "mlx": EngineTraits(name="mlx", chunk_tokens=2048, hop_s=2e-4, hop_bytes=2.0, kv_tiers=False),
    "transformers": EngineTraits(
        name="transformers", policy="prefill_first", hop_s=2e-4, hop_bytes=2.0, kv_tiers=False
    ),
}
SYNONYMS = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp"}


def engine_traits(name: str) -> EngineTraits:
    """Return traits of an engine by name; an unknown one counts as one like vLLM under its own name."""
    key = name.strip().lower()
    key = SYNONYMS.get(key, key)
    return ENGINES.get(key) or EngineTraits(name=key)
