"""One replica as the time model sees it: a model, split over machines by stages, run by an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from longboat.catalog.shape.model_shape import Layer, ModelShape
from longboat.planner.memory.engine import EngineTraits
from longboat.planner.predict.machine import LOOPBACK, Fabric, Machine

__all__ = ("Counted", "Deployment", "Stage", "even_stages")

# Work by what a layer is counted for (machine, division, pass), and by the layer's ``id``.
Counted = dict[tuple[object, ...], dict[int, dict[str, float]]]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Consecutive layers on equal accelerators.

    tensor: accelerators of the stage
    link: between them
    near: between those of one group that divides requests with others; None: as ``link``
    """

    num_layers: int
    machine: Machine
    tensor: int = 1
    link: Fabric = LOOPBACK
    near: Fabric | None = None


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A replica.

    attention_data: groups into which the accelerators of a stage divide the requests for attention, whose weights each
        group holds (DP attention); 1: tensor parallel attention
    expert: ranks that divide the experts by copies; 1: experts are cut like other weights
    hop: between stages
    counted: work of layers that was counted for deployments of the same shape and engine (``work``)
    """

    shape: ModelShape
    engine: EngineTraits
    stages: tuple[Stage, ...]
    attention_data: int = 1
    expert: int = 1
    hop: Fabric = LOOPBACK
    counted: Counted = field(default_factory=dict, compare=False, repr=False)

    @property
    def cache_bytes(self) -> float:
        """Bytes of one number in the cache of keys and values."""
        return 1.0 if self.shape.kv_cache_dtype.startswith("fp8") else self.number_bytes

    @property
    def number_bytes(self) -> float:
        """Bytes of one number of the hidden state."""
        return self.stages[0].machine.number_bytes

    @property
    def host_calls(self) -> bool:
        """Ranks talk through the sockets of their hosts."""
        return self.engine.host_calls and self.stages[0].machine.processor

    def counted_layers(self) -> list[tuple[tuple[Layer, int], ...]]:
        """Return for each stage each sort of layer, and how often it occurs there."""
        ends = list(accumulate((stage.num_layers for stage in self.stages), initial=0))
        return [self.shape.counted_layers(start, stop) for start, stop in pairwise(ends)]


def even_stages(shape: ModelShape, machine: Machine, *, pipeline: int, tensor: int, link: Fabric) -> tuple[Stage, ...]:
    """Return stages of as equal a number of layers as possible; the first ones get what is left over."""
    share, rest = divmod(len(shape.layers), pipeline)
    counts = (share + (index < rest) for index in range(pipeline))
    return tuple(Stage(num_layers=count, machine=machine, tensor=tensor, link=link) for count in counts)
