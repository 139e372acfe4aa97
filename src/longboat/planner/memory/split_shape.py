"""What is asked for (split, load, engine) and what it is asked of (cards): the words in which fits are planned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from longboat.catalog.entries import Accelerator
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.plan import AdapterRoom

__all__ = ("ANY_SPLIT", "AskedSplit", "Card", "EngineKind", "Load", "Split", "card_of", "even_stages")

EngineKind = Literal["vllm", "sglang", "llama.cpp"]
# Links of the catalog whose switches add up what all cards send.
MULTICAST_LINKS = ("NVLink 4", "NVLink 5")


@dataclass(frozen=True, kw_only=True)
class Card:
    """One accelerator, or one processor that computes, as far as memory goes.

    memory_bytes: all of it; usable_bytes: what engines may have at most (less than all where the system shares it)
    free_bytes: what is free now; None: not known, all that is usable counts as free
    """

    name: str
    memory_bytes: int
    usable_bytes: int
    free_bytes: int | None = None
    kind: Literal["gpu", "soc", "cpu"] = "gpu"
    multicast: bool = False  # the links between such cards add up what they carry (NVLink SHARP, from Hopper on)

    def __hash__(self) -> int:
        """Return a hash of few fields: a search looks bytes up by card tens of thousands of times."""
        return hash((self.name, self.memory_bytes))


def card_of(entry: Accelerator, *, memory_bytes: int = 0) -> Card:
    """Return a card of the catalog; memory_bytes: another size than the entry's, 0: the same."""
    total = memory_bytes or entry.memory_bytes
    return Card(
        name=entry.name,
        memory_bytes=total,
        usable_bytes=int(total * entry.usable_ratio),
        kind=entry.kind,
        multicast=entry.link.startswith(MULTICAST_LINKS),
    )


@dataclass(frozen=True, kw_only=True)
class Split:
    """The division of one replica."""

    tensor: int = 1  # ranks of each stage
    stages: tuple[int, ...]  # layers of each pipeline stage
    expert_parallel: bool = False  # whole experts are divided over the ranks of a stage; none is cut
    # Parts among which requests are divided: each has ``tensor`` / ``data`` ranks, which hold all weights but other
    # ranks' experts, and the caches of its own requests. 1: requests are not divided.
    data: int = 1

    @property
    def pipeline(self) -> int:
        return len(self.stages)

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def expert(self) -> int:
        """Ranks that divide experts by copies; 1: none do."""
        return self.tensor if self.expert_parallel else 1

    @property
    def cut(self) -> int:
        """Parts into which weights and caches are cut, experts aside."""
        return self.tensor // self.data

    @property
    def expert_cut(self) -> int:
        """Parts into which each expert is cut where experts are not divided by copies: all ranks of a stage."""
        return self.tensor


@dataclass(frozen=True, kw_only=True)
class AskedSplit:
    """The split that a user asks for; 0, empty and None leave it to the planner."""

    tensor: int = 0  # ranks of each data part
    pipeline: int = 0
    data: int = 0
    expert_parallel: bool | None = None
    layers: tuple[int, ...] = ()  # of each stage
    even: bool = False  # layers are divided as the engine does by itself

    def __bool__(self) -> bool:
        return bool(self.tensor or self.pipeline or self.data or self.expert_parallel)

    @property
    def title(self) -> str:
        """The split in the words of the command line."""
        parts = [f"--tensor {self.tensor}"] if self.tensor else []
        parts += [f"--pipeline {self.pipeline}"] if self.pipeline else []
        parts += [f"--data {self.data}"] if self.data else []
        return " ".join([*parts, "--expert-parallel"] if self.expert_parallel else parts)

    @property
    def least_ranks(self) -> int:
        """Accelerators that one replica takes at least."""
        return max(1, self.tensor) * max(1, self.pipeline) * max(1, self.data)


ANY_SPLIT = AskedSplit()


@lru_cache(maxsize=1024)
def even_stages(num_layers: int, pipeline: int) -> tuple[int, ...]:
    """Return layers per stage as vLLM divides them: the rest goes to the stages before the last, from behind.

    Source: ``vllm/distributed/utils.py``, ``get_pp_indices``.
    """
    each, over = divmod(num_layers, pipeline)
    return tuple(each + (1 if pipeline - 1 - over <= stage < pipeline - 1 else 0) for stage in range(pipeline))


@dataclass(frozen=True, kw_only=True)
class Load:
    """The requests that a replica is to hold, and the engine's settings. 0: the engine's own default."""

    context_tokens: int  # longest request, prompt and response
    num_sequences: int = 1  # requests at once
    # Most tokens of one step (vLLM's max-num-batched-tokens, SGLang's chunked prefill, llama.cpp's ubatch).
    batched_tokens: int = 0
    engine_sequences: int = 0  # requests at once that the engine is started for (max-num-seqs)
    weight_bits: int = 0  # bits with which weights of 16 bits are computed
    kv_bits: int = 16  # of the numbers in the cache
    memory_ratio: float = 0.0  # share of a card that the engine takes
    # Bytes that the engine must give to caches on each rank (vLLM's kv-cache-memory-bytes), whatever the budget; 0:
    # what the budget leaves.
    cache_bytes: int = 0
    cache_tokens: int = 0  # tokens that the engine must keep (SGLang's max-total-tokens); 0: no such setting
    graphs: bool = True  # the engine captures CUDA graphs
    version: tuple[int, ...] = ()  # of the engine, (0, 11, 2); empty: the one that the catalog lists
    fixed: bool = False  # no smaller settings are tried where the engine starts with these
    as_set: bool = False  # no smaller settings are tried: the engine gets these
    adapters: AdapterRoom | None = None  # room that the engine makes for LoRA adapters
    draft: ModelShape | None = None  # model that proposes tokens, whole on the last stage
    engine: EngineKind = "vllm"

    @property
    def kv_bytes(self) -> float:
        return self.kv_bits / 8
