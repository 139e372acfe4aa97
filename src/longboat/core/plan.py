"""Describes which process runs on which node: a gang of processes is one engine, with one node rank on each node.

Words: a *gang* is one engine; it has one *node rank* (one process tree) on each of its nodes, and each node rank
holds one or more *worker ranks* (one per accelerator, or one per CPU slot). data x tensor x pipeline = all worker
ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat.core.media import MediaRules
from longboat.core.tasks import GENERATE, Task

__all__ = ("AdapterRoom", "EngineMemory", "GangPlan", "GangShape", "RankPlan", "RankResources", "part_of_memory")


def part_of_memory(gpus: float, ratio: float) -> float:
    """Return the share of a card's memory for an engine that gets a part of it; ratio: share that it takes of one."""
    return int(gpus * ratio * 1000) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResources:
    """The resources of one worker rank on its node."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0  # 0: the rank computes on the CPU
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangShape:
    """The shape of a gang before its nodes are chosen."""

    tensor: int  # degree of tensor parallelism
    pipeline: int  # number of pipeline stages
    num_nodes: int  # nodes that the gang spans, with one node rank on each; ``num_ranks`` is a multiple of it
    resources: RankResources
    reason: str = ""  # why this shape was chosen, in one sentence
    layers: tuple[int, ...] = ()  # number of layers of each pipeline stage; empty: the engine divides the layers
    # labels that the node of each pipeline stage must have; empty: a stage may run on any node. Where set, each stage
    # is one node rank
    stages: tuple[Mapping[str, str], ...] = ()
    # several node ranks may share a node (only with ``stages``); num_nodes then counts node ranks
    shares_nodes: bool = False
    data: int = 1  # data parallel ranks, each of tensor * pipeline worker ranks: requests are divided among them
    expert: bool = False  # whether whole experts are divided over data * tensor worker ranks, and none is cut

    @property
    def num_ranks(self) -> int:
        """Number of all worker ranks."""
        return self.data * self.tensor * self.pipeline

    @property
    def title(self) -> str:
        """The shape as ``longboat status`` shows it: ``DP2 TP8 PP1 EP``."""
        data = f"DP{self.data} " if self.data > 1 else ""
        return f"{data}TP{self.tensor} PP{self.pipeline}{' EP' if self.expert else ''}"

    @property
    def ranks_per_node(self) -> int:
        """Number of worker ranks on each node."""
        return self.num_ranks // self.num_nodes

    @property
    def data_per_node(self) -> int:
        """Number of data parallel ranks on each node, where none reaches over two nodes."""
        return self.data // self.num_nodes

    @property
    def gpus_per_node(self) -> float:
        return self.resources.num_gpus * self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRoom:
    """The room that a replica has for LoRA adapters."""

    slots: int  # adapters that it computes with at the same time
    held: int  # adapters that it keeps in its host's memory
    rank: int  # highest rank of one


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """An engine's settings about its memory, as far as planning needs them."""

    weight_bits: int = 0  # bits of each weight; 0: as stored
    kv_bits: int = 16  # bits of each number in the KV cache
    cache_bytes: int = 0  # bytes that each worker rank gives to the cache; 0: what ``memory_ratio`` leaves
    cache_tokens: int = 0  # tokens that the cache keeps, for engines whose setting counts tokens; 0: no such setting
    memory_ratio: float = 0.0  # part of the card that the engine takes; 0: the engine's default
    sequences: int = 0  # most sequences in one step; 0: the engine's default
    batched_tokens: int = 0  # most tokens in one step; 0: the engine's default
    block_tokens: int = 16  # tokens of a cache block
    adapters: AdapterRoom | None = None  # that the engine makes before its first request; None: it knows no adapters
    graphs: bool = True  # whether the engine captures CUDA graphs
    version: tuple[int, ...] = ()  # of the engine, (0, 11, 2); empty: the one that Longboat's catalog lists
    fixed: bool = False  # no smaller settings are tried where the engine starts with these
    unknown: tuple[str, ...] = ()  # settings that make the bytes unpredictable, as the user wrote them


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One node rank: where it runs, and the address, network interface and ports by which the other ranks reach it."""

    node_rank: int
    node_id: str
    address: str
    interface: str  # network interface that owns ``address`` (eth0), for NCCL and Gloo
    # purpose → TCP port that is free on this node; the engine's adapter names the purposes (``api``, ``master``, …)
    ports: Mapping[str, int] = field(default_factory=dict)
    # GPUs that the scheduler gave this rank, as CUDA_VISIBLE_DEVICES names them; empty on a CPU
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlan:
    """Everything that an engine adapter needs to write the command lines of all ranks of one gang."""

    fleet: str
    model: str  # name that clients use
    source: str  # the fleet file's source (``builtin:tiny``)
    model_path: str  # folder or hub id that the engine gets
    replica: str  # Serve's replica id
    generation: int  # grows with every start of a gang of this model
    shape: GangShape
    ranks: tuple[RankPlan, ...]
    context_tokens: int | None
    task: Task = GENERATE  # what the model is for
    media: MediaRules = field(default_factory=MediaRules)  # what its requests may hold
    extra_args: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    adapters: AdapterRoom | None = None  # None: no adapters
    # secret that the gateway shows to the engine; passed by environment, never by argv
    api_key: str = field(default="", repr=False)

    @property
    def head(self) -> RankPlan:
        return self.ranks[0]
