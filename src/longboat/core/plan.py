"""What is to run where: a gang of processes, one rank a node, that together are one engine.

Words: a *gang* is one engine; it has one *node rank* (one process tree) on each of its nodes, and each node rank
holds one or more *worker ranks* (one an accelerator, or one a CPU slot). tensor x pipeline = all worker ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ("EngineMemory", "GangPlan", "GangShape", "RankPlan", "RankResources")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResources:
    """What one worker rank takes on its node. ``num_gpus`` 0 means it computes on the CPU."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangShape:
    """How a gang spreads, before anyone chose the nodes.

    tensor, pipeline: degrees of parallelism
    num_nodes: nodes the gang spans, with a node rank on each; tensor * pipeline is a multiple of it
    ranks_per_node: worker ranks on each node
    reason: why this shape, one sentence
    layers: of each pipeline stage; empty: as the engine divides them
    stages: labels of the node of each pipeline stage; empty: any node may have any. With them each stage is a node rank
    shares_nodes: several node ranks may be on one node (only with ``stages``); num_nodes counts node ranks then
    """

    tensor: int
    pipeline: int
    num_nodes: int
    resources: RankResources
    reason: str = ""
    layers: tuple[int, ...] = ()
    stages: tuple[Mapping[str, str], ...] = ()
    shares_nodes: bool = False

    @property
    def ranks_per_node(self) -> int:
        return self.tensor * self.pipeline // self.num_nodes

    @property
    def gpus_per_node(self) -> float:
        return self.resources.num_gpus * self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """What an engine's settings say about its memory, as far as planning goes.

    weight_bits: of all weights; 0: as stored. kv_bits: of a number in the cache
    cache_bytes: that each worker rank gives to the cache; 0: what a ratio of the card leaves
    memory_ratio: of the card that the engine takes; 0: its default
    sequences, batched_tokens: at once, and in a step; 0: its default
    block_tokens: of a cache block
    graphs: whether it captures CUDA graphs
    unknown: settings after which bytes cannot be told, as they are written
    """

    weight_bits: int = 0
    kv_bits: int = 16
    cache_bytes: int = 0
    memory_ratio: float = 0.0
    sequences: int = 0
    batched_tokens: int = 0
    block_tokens: int = 16
    graphs: bool = True
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One node rank: where it runs and by which address, card and ports the others reach it.

    interface: network card that owns ``address`` (eth0), for NCCL and Gloo
    ports: purpose → TCP port that is free on this node (``api``, ``master``, … as the engine's adapter asked)
    gpu_ids: what the scheduler gave this rank, as CUDA_VISIBLE_DEVICES wants them; empty on a CPU
    """

    node_rank: int
    node_id: str
    address: str
    interface: str
    ports: Mapping[str, int] = field(default_factory=dict)
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlan:
    """Everything an engine adapter needs to write command lines for all ranks of one gang.

    model: name that clients use; source: the spec's source (``builtin:tiny``); model_path: folder or hub id that
    the engine is given; replica: Serve's replica id; generation: grows with every start of a gang of this model;
    api_key: the secret the gateway shows to the engine (goes by environment, never by argv).
    """

    fleet: str
    model: str
    source: str
    model_path: str
    replica: str
    generation: int
    shape: GangShape
    ranks: tuple[RankPlan, ...]
    context_tokens: int | None
    extra_args: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    api_key: str = field(default="", repr=False)

    @property
    def head(self) -> RankPlan:
        return self.ranks[0]
