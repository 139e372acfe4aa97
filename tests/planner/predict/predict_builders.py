"""Deployments and rows for tests of the time model."""

from __future__ import annotations

from longboat.catalog.library import Library, built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.memory.engine import engine_traits
from longboat.planner.predict.calibration.sample import stored_as
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Deployment, even_stages
from longboat.planner.predict.load import Load
from longboat.planner.predict.machine import Fabric, Machine, fabric_of, machine_of
from longboat.planner.predict.serving import Prediction, predict

H100 = Machine(
    name="H100 SXM",
    memory_bytes=85e9,
    bandwidth_bytes_per_s=3350e9,
    flops_16=989e12,
    flops_8=1979e12,
    flops_4=1979e12,
)
NVLINK = Fabric(name="NVLink 4", latency_s=6.5e-6, bandwidth_bytes_per_s=440e9)
ETHERNET = Fabric(name="10GbE", latency_s=200e-6, bandwidth_bytes_per_s=1.17e9)


def library() -> Library:
    return built_in_library()


def shape_of(name: str, quantization: str = "") -> ModelShape:
    return stored_as(shape_of_entry(library().models.find(name)), quantization)


def machine(name: str) -> Machine:
    return machine_of(library().accelerators.find(name))


def link(name: str) -> Fabric:
    return fabric_of(library().links.find(name))


def deploy(
    shape: ModelShape,
    on: Machine = H100,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    over: Fabric = NVLINK,
    engine: str = "vllm",
    hop: Fabric | None = None,
    expert: int = 1,
) -> Deployment:
    return Deployment(
        shape=shape,
        engine=engine_traits(engine),
        stages=even_stages(shape, on, pipeline=pipeline, tensor=tensor, link=over),
        expert=expert,
        hop=hop or over,
    )


def single(prompt_tokens: int = 512, output_tokens: int = 128, concurrency: float = 1.0) -> Load:
    return Load(concurrency=concurrency, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def predicted(deployment: Deployment, load: Load | None = None, calibration: Calibration | None = None) -> Prediction:
    return predict(deployment, load or single(), calibration or Calibration())
