"""A model as the planner reads it: what is to be served, and what the fleet file leaves to decide.

``longboat.spec.wanted`` makes these from the fleet file; nothing below ``spec`` reads its classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat.core.scaling import Objective
from longboat.core.tasks import GENERATE, Task

__all__ = ("MAX_RANKS", "EngineSplits", "Placement", "WantedLoad", "WantedModel", "WantedRank")

MAX_RANKS = 1024
"""Worker ranks of one replica at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLoad:
    """The requests that a model is planned for."""

    users: int = 8  # requests under way at once, over all replicas
    prompt_tokens: int = 1024
    output_tokens: int = 256
    images: int = 0  # of one request, besides the tokens of its prompt
    lengths_given: bool = False  # whether the file states either of the two lengths
    ttft_ms: float | None = None  # limit of the mean request; None: no limit
    itl_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRank:
    """What one worker rank takes on its node."""

    num_cpus: float = 1.0
    num_gpus: float | None = None  # None: 1 on a GPU platform, else 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The nodes on which replicas may run."""

    labels: Mapping[str, str] = field(default_factory=dict)  # that each node must carry
    nodes: int | None = None  # that one replica spans; None: left to decide
    stages: tuple[Mapping[str, str], ...] = ()  # labels of the node of each pipeline stage; empty: any node


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSplits:
    """How an engine can split a model, as its adapter describes it."""

    tensor: bool = True  # each layer, by tensor parallelism
    experts: bool = True  # whole experts, and requests, are divided over ranks
    # It divides layers among stages by itself. Another engine needs the layers of each stage, and one of its processes
    # computes all layers of a node.
    divides_layers: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """One model of a fleet. ``None`` in replicas or in a part of the split leaves that to the planner."""

    name: str
    source: str
    engine: str = "vllm"
    splits: EngineSplits = EngineSplits()
    task: Task = GENERATE  # what it is for
    overrides_config: bool = False  # whether the engine's arguments replace parts of its config
    environment: str | None = None  # folder of the user's own engine environment
    settings: str = ""  # digest of everything else with which the engine is started
    replicas: int | None = 1
    max_replicas: int | None = None  # where the load decides: the most that there may ever be
    objectives: tuple[Objective, ...] = ()  # that decide the count of replicas
    tensor: int | None = 1
    pipeline: int | None = 1
    data: int | None = 1
    expert: bool | None = False  # whether whole experts are divided over the ranks of a stage
    layers: tuple[int, ...] = ()  # of each stage; empty: as the engine divides them
    context: int | None = None  # tokens of the longest request; None: what the model can do
    speculative_tokens: int = 0  # that are proposed in each step; 0: no speculation
    load: WantedLoad = WantedLoad()
    rank: WantedRank = WantedRank()
    placement: Placement = Placement()

    @property
    def split_is_open(self) -> bool:
        """Whether the planner decides all of the split that the engine has."""
        return self.pipeline is None and (self.tensor is None or not self.splits.tensor)

    @property
    def split_is_decided(self) -> bool:
        """Whether each part of the split is a number."""
        return None not in (self.tensor, self.pipeline, self.data, self.expert)

    @property
    def is_decided(self) -> bool:
        """Whether the planner has nothing to decide."""
        return self.replicas is not None and self.split_is_decided

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas. Raises ValueError where it is not decided."""
        if self.replicas is None:
            raise ValueError(f"the replicas of {self.name} are not decided")
        return self.replicas

    @property
    def degrees(self) -> tuple[int, int]:
        """Return tensor and pipeline degree. Raises ValueError where one of them is not decided."""
        if self.tensor is None or self.pipeline is None:
            raise ValueError(f"the split of {self.name} is not decided")
        return self.tensor, self.pipeline
