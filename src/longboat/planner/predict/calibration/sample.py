"""From measured rows to samples: names looked up, quantities counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from longboat.catalog.library import Library
from longboat.catalog.quantization.quantized import quantize
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.quantization.rules import NVFP4, Quantization, Rule
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError
from longboat.planner.memory.divide import find_obstacle
from longboat.planner.memory.engine import EngineTraits, engine_traits
from longboat.planner.memory.processor_part import find_hardware
from longboat.planner.predict.calibration.rows import Row
from longboat.planner.predict.capacity import sequences_that_fit
from longboat.planner.predict.deployment import Deployment, even_stages
from longboat.planner.predict.features import Features, features_of
from longboat.planner.predict.kernels import computed_on, kernel_class
from longboat.planner.predict.load import Load
from longboat.planner.predict.machine import LOOPBACK, Fabric, Machine, fabric_of, machine_for, machine_of

__all__ = ("Sample", "SampleMaker", "ShapeOf", "Skipped", "stored_as")

ShapeOf = Callable[[str], ModelShape]
# Where neither the row nor the catalog names a link between the accelerators of a node.
USUAL_BUS = "PCIe 4 x16"
GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A measured row with all that the model needs to predict it."""

    row: Row
    engine: EngineTraits
    kernel: str
    machine: str
    model: str
    num_params: int  # of the model: those of equal size and machine are of one design (DeepSeek-V3 and R1)
    load: Load
    features: Features

    @property
    def key(self) -> tuple[str, str, str]:
        """Model, machine and engine, as the catalog names them."""
        return self.model, self.machine, self.engine.name


def _check_possible(deployment: Deployment) -> None:
    """Raise UserInputError where no engine can have run so: weights beyond all memory, a split that cannot be."""
    for stage, layers in zip(deployment.stages, deployment.counted_layers(), strict=True):
        held = sum(count * layer.num_bytes for layer, count in layers) / stage.tensor
        if held > stage.machine.memory_bytes:
            raise UserInputError(
                f"{stage.tensor} x {stage.machine.name} cannot hold the weights: {held / GIB:.1f} GiB on each, which "
                f"has {stage.machine.memory_bytes / GIB:.1f} GiB",
                hint="is the number of ranks or the format of the weights right?",
            )
    first, stages = deployment.stages[0], tuple(stage.num_layers for stage in deployment.stages)
    cut = max(1, first.tensor // deployment.attention_data)
    if obstacle := find_obstacle(deployment.shape, tensor=cut, stages=stages, expert=deployment.expert):
        raise UserInputError(obstacle.what, hint=obstacle.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A line that cannot be read or predicted, and why. row: None where it could not be read."""

    reason: str
    line: int = 0
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class SampleMaker:
    """Makes samples with one catalog. known: shapes by name and quantization, each made once."""

    library: Library
    shape_of: ShapeOf
    known: dict[tuple[str, str], ModelShape] = field(default_factory=dict)

    def samples(self, rows: Iterable[tuple[int, Row]]) -> tuple[list[Sample], list[Skipped]]:
        """Return a sample for each row (with its line in the file) whose model and hardware are known."""
        made: list[Sample] = []
        skipped: list[Skipped] = []
        for line, row in rows:
            try:
                made.append(self.sample(row))
            except UserInputError as error:
                skipped.append(Skipped(row=row, reason=error.message, line=line))
        return made, skipped

    def sample(self, row: Row) -> Sample:
        """Return the sample of a row. Raises UserInputError where the catalog lacks its model, hardware or link."""
        deployment = self.deployment(row)
        _check_possible(deployment)
        load = Load(
            concurrency=row.concurrency,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            spread=row.spread,
        )
        room = sequences_that_fit(deployment, load)
        machine = deployment.stages[0].machine
        return Sample(
            row=row,
            engine=deployment.engine,
            kernel=kernel_class(deployment.shape, machine),
            machine=machine.name,
            num_params=deployment.shape.num_params,
            model=deployment.shape.name,
            load=load,
            features=features_of(deployment, load, max_sequences=room),
        )

    def deployment(self, row: Row) -> Deployment:
        """Return the replica that a row speaks of."""
        accelerator = find_hardware(row.hardware, self.library)
        machine = machine_for(machine_of(accelerator), engine_traits(row.engine).name)
        shape = computed_on(machine, self._shape(row.model, row.quantization))
        if row.pipeline > len(shape.layers):
            raise UserInputError(
                f"{row.pipeline} stages for the {len(shape.layers)} layers of {shape.name}", hint="is it pipeline?"
            )
        link = self._link(row.link or accelerator.link or USUAL_BUS) if row.tensor > 1 else LOOPBACK
        hop = self._link(row.hop or row.link or accelerator.link or USUAL_BUS) if row.pipeline > 1 else LOOPBACK
        return _deployment(row, shape, machine, link, hop)

    def _shape(self, model: str, quantization: str) -> ModelShape:
        key = (model, quantization)
        if key not in self.known:
            self.known[key] = stored_as(self.shape_of(model), quantization)
        return self.known[key]

    def _link(self, name: str) -> Fabric:
        return fabric_of(self.library.links.find(name.split(",")[0]))


def _deployment(row: Row, shape: ModelShape, machine: Machine, link: Fabric, hop: Fabric) -> Deployment:
    return Deployment(
        shape=shape,
        engine=replace(engine_traits(row.engine), poll_steps=row.poll_steps),
        stages=even_stages(shape, machine, pipeline=row.pipeline, tensor=row.tensor, link=link),
        attention_data=min(row.attention_data, row.tensor),
        expert=row.expert,
        hop=hop,
    )


def stored_as(shape: ModelShape, quantization: str) -> ModelShape:
    """Return ``shape`` in a quantization by the words of measurements: fp8, fp4, bf16, or the catalog's own names.

    ``""`` and the one that it has already change nothing. As published: FP8 in blocks where there are experts, by
    tensor where there are none; FP4 for the experts alone where there are any.
    """
    wanted, has_experts = quantization.lower(), any(layer.num_experts for layer in shape.layers)
    if not wanted or (wanted in shape.quantization and wanted not in ("bf16", "fp16")):
        return shape
    if wanted == "fp8":
        return requantized(shape, "fp8" if has_experts else "fp8-tensor")
    if wanted in ("fp4", "nvfp4") and has_experts:
        scheme = Quantization(name="nvfp4", rules=(Rule(form=NVFP4),), experts_only=True)
        return replace(quantize(requantized(shape, "bf16"), scheme), quantization="nvfp4")
    return requantized(shape, {"fp4": "nvfp4", "int4": "awq"}.get(wanted, wanted))
