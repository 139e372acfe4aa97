"""The formats of weights that a user asks for, and how cards and engines compute them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.catalog.entries import Engine
from longboat.catalog.quantization.requantize import GGUF_MIXES, QUANTIZATIONS, requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.pools import Pool, pools_of
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.formats import as_computed, is_gguf, lacks_kernels
from longboat.planner.memory.split_shape import EngineKind
from longboat.planner.search.advice import quantizations_below
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.ranking import Plan

__all__ = ("asked_formats", "check_kernels", "in_float16", "marked_gguf")

# Other writings of the words that mean another format with each engine (``EngineTraits.words``).
BIT_WORDS = {"4bit": "q4", "4-bit": "q4", "int4": "q4", "8bit": "q8", "8-bit": "q8", "int8": "q8"}
AS_STORED = ("stored", "as-stored")
BF16_CAPABILITY = 80
"""The least compute capability, times ten, of cards that multiply in bfloat16."""


def asked_formats(shape: ModelShape, quantization: str, engine: EngineKind, entry: Engine) -> list[ModelShape]:
    """Return the model in each format of ``--quantization``; in the one that the engine computes where none is given.

    Raises UserInputError for a format that the engine does not compute.
    """
    words = [word.strip().lower() for word in quantization.split(",") if word.strip()]
    return [_in(shape, word, engine) for word in words] or [as_computed(shape, entry)]


def _in(shape: ModelShape, word: str, engine: EngineKind) -> ModelShape:
    if word in AS_STORED:
        return shape
    bits = engine_traits(engine).words.get(BIT_WORDS.get(word, word))
    name = bits or word
    if name != shape.quantization and not bits:
        _check_engine(shape, name, engine)
    return shape if name == shape.quantization else requantized(shape, name)


def _check_engine(shape: ModelShape, name: str, engine: EngineKind) -> None:
    """Refuse formats other than GGUF mixes with an engine whose own format that is."""
    traits = engine_traits(engine)
    if not traits.gguf or name not in QUANTIZATIONS or name in (*GGUF_MIXES, "bf16", "fp16", "mxfp4"):
        return
    size = requantized(shape, name).weight_bytes
    other = "q4" if "4" in name or name == "awq" else "q8"
    raise UserInputError(
        f"{engine} does not compute weights in {name} well, {size / 1024**3:.1f} GiB of {shape.name}",
        hint=f"--quantization {traits.words[other]}, or --engine vllm",
    )


def check_kernels(shapes: Sequence[ModelShape], cluster: Cluster, engine: EngineKind) -> None:
    """Raise UserInputError for the first format that one of the cards cannot multiply."""
    for shape in shapes:
        for pool in pools_of(cluster):
            if why := lacks_kernels(pool.entry, shape.quantization):
                able = next(quantizations_below(requantized(shape, "bf16"), engine, cluster), None)
                raise UserInputError(
                    f"{shape.name} in {shape.quantization}: {why}",
                    hint=f"--quantization {able.quantization if able else 'bf16'}",
                )


def in_float16(plan: Plan, cluster: Cluster) -> Plan:
    """Return the plan with replicas in float16 on cards without bfloat16: vLLM and SGLang refuse bfloat16 there."""
    olds = {pool.number: pool for pool in pools_of(cluster) if 0 < pool.entry.compute_capability < BF16_CAPABILITY}
    if not olds:
        return plan
    return replace(plan, groups=tuple(_group_in_float16(group, olds) for group in plan.groups))


def _group_in_float16(group: Forecast, olds: dict[int, Pool]) -> Forecast:
    old = next((olds[number] for number in group.layout.pools if number in olds), None)
    if old is None or group.shape.dtype != "bfloat16":
        return group
    reason = f"{old.entry.name} has no bfloat16: computed in float16, with --dtype half"
    return replace(group, shape=replace(group.shape, dtype="float16", estimate=(*group.shape.estimate, reason)))


def marked_gguf(shape: ModelShape, engine: str) -> ModelShape:
    """Return the shape, marked where another engine than llama.cpp reads GGUF weights, however those were written."""
    if not is_gguf(shape.quantization):
        return shape
    nearest = "fp8" if shape.quantization.startswith(("q5", "q6", "q8")) else "awq"
    reason = (
        f"{engine} reads GGUF files as an experiment, slower than counted: take --quantization {nearest}, or --engine "
        "llamacpp"
    )
    return replace(shape, estimate=(*shape.estimate, reason))
