"""The traits of engines: what each can do, how it schedules and keeps memory, and what a hop between stages costs.

The planner names no engine where one of these properties says what it asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

__all__ = ("ENGINES", "OFFLOADING", "EngineTraits", "engine_traits")


@dataclass(frozen=True, kw_only=True)
class EngineTraits:
    """The properties of an engine that the planner uses.

    It has many fields, because it is the one description of an engine for bytes, times and formats.
    """

    name: str
    # Settings.
    kind: str = ""  # its name in a fleet file; ``""``: no fleet file has it
    layer_setting: str = ""  # variable or option that sets the layers of each stage
    sets_equal_layers: bool = True  # whether it must be given layers that are as equal as can be, too
    dtype_half: str = "float16"  # its word for numbers of 16 bits that are not bfloat16
    # Formats of weights.
    gguf: bool = False  # whether GGUF is its own format
    fewer_bits: tuple[str, ...] = ("fp8", "nvfp4", "awq")  # the one that changes answers least first
    old_card_bits: tuple[str, ...] = ()  # where kernels for these do not run
    words: Mapping[str, str] = field(default_factory=lambda: {"q4": "awq", "q8": "fp8"})  # what these mean here
    # Memory.
    slots: bool = False  # whether each request that runs has a slot with room for the longest one
    most_sequences: int = 1024  # that it takes into one step at most by default, on large cards; others wait
    batched_tokens: int = 2048  # of one step, by default
    large_batched_tokens: int = 0  # the same on large cards; 0: no more
    huge_batched_tokens: int = 0  # the same on the largest cards
    # Share of the whole card that it takes: it refuses to start where less is free. 0: it takes what it needs, or
    # what is free.
    memory_ratio: float = 0.0
    keeps_reserve: bool = False  # whether a reserve that it computes holds activations and graphs (SGLang)
    pads_experts: bool = False  # whether its kernels on accelerators pad experts in MXFP4
    wide_on_processors: bool = False  # whether it computes with 32 bits on processors, as Longboat starts it
    embedding_in_ram: bool = False  # whether the embedding stays in the host's memory
    window_holds_batch: bool = False  # whether caches with a window have room for a step's tokens, too
    window_in_flight: bool = False  # whether they have room for the tokens of all steps under way, once (vLLM)
    states: int = 1  # copies of a state of fixed size (of Mamba, of linear attention) that a request has
    moves_caches: bool = True  # whether prefill and decode may be on replicas apart
    equal_experts: bool = False  # whether ranks must divide the experts without a rest
    # Times.
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
    divides_limits: bool = False  # whether its limits of a step are those of all data parts together (SGLang)
    poll_steps: float = 1.0  # decode steps between two looks for new requests (SGLang's --scheduler-recv-interval)

    def of_part(self, limit: int, data_parts: int) -> int:
        """Return a data part's limit of requests or tokens in one step, where the engine's setting is ``limit``."""
        return max(1, limit // data_parts) if limit and self.divides_limits else limit


# vLLM sends hidden state and residual in 16 bits. llama.cpp and distributed-llama send float32 both ways; the time of a
# synchronous hop is derived from a pair of DGX Spark (2.6 ms) and from Macs on 2.5 GbE (6-9 ms).
ENGINES = {
    "vllm": EngineTraits(
        name="vllm",
        kind="vllm",
        layer_setting="VLLM_PP_LAYER_PARTITION",
        sets_equal_layers=False,
        dtype_half="half",
        old_card_bits=("gptq-int8", "gptq"),
        large_batched_tokens=8192,
        huge_batched_tokens=16_384,
        memory_ratio=0.92,
        pads_experts=True,
        window_in_flight=True,
        states=2,
        wide_on_processors=True,
        hop_s=5e-5,
        host_calls=True,
    ),
    "sglang": EngineTraits(
        name="sglang",
        kind="sglang",
        layer_setting="SGLANG_PP_LAYER_PARTITION",
        old_card_bits=("gptq-int8", "gptq"),
        keeps_reserve=True,
        wide_on_processors=True,
        equal_experts=True,
        policy="prefill_first",
        divides_limits=True,
        hop_s=5e-5,
        hop_bytes=2.0,
        host_calls=True,
    ),
    "tensorrt-llm": EngineTraits(name="tensorrt-llm", hop_s=5e-5, hop_bytes=2.0),
    "llama.cpp": EngineTraits(
        name="llama.cpp",
        kind="llama.cpp",
        layer_setting="--tensor-split",
        gguf=True,
        fewer_bits=("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k"),
        words={"q4": "q4_k_m", "q8": "q8_0"},
        slots=True,
        most_sequences=256,  # ``LLAMA_MAX_SEQ``
        batched_tokens=512,
        embedding_in_ram=True,
        window_holds_batch=True,
        moves_caches=False,
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
# The engine that keeps layers, experts or the cache in RAM where a card has no room for them.
OFFLOADING: Literal["llama.cpp"] = "llama.cpp"
SYNONYMS = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp"}


@lru_cache(maxsize=64)
def engine_traits(name: str) -> EngineTraits:
    """Return traits of an engine by name; an unknown one counts as one like vLLM under its own name."""
    key = name.strip().lower()
    key = SYNONYMS.get(key, key)
    return ENGINES.get(key) or EngineTraits(name=key)
