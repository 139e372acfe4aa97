"""What is wrong with what a fleet file asks of its engines: splits, sources and arguments that they do not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from longboat.builtin import describe, is_builtin
from longboat.core.errors import Problem, UserInputError
from longboat.core.tasks import POOLING_TASKS
from longboat.engine_names import engine_names
from longboat.engines.card_parts import part_of_card
from longboat.engines.contract import Ability, EngineAdapter
from longboat.engines.registry import adapter_for
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.types.source import is_fetched, is_gguf, is_local_path

__all__ = ("engine_problems", "model_problems", "source_problems")


def engine_problems(fleet: Fleet) -> list[Problem]:
    """Return the problems of all models with their engines, each with its place in the file.

    Raises UserInputError where the package of an engine cannot be used.
    """
    return [problem for index, model in enumerate(fleet.models) for problem in model_problems(model, index)]


def model_problems(model: ModelSpec, position: int) -> list[Problem]:
    """Return the problems of one model with its engine, as engine_problems does. position: in the file's list."""
    adapter = adapter_for(model.engine.kind)
    found = [*_missing_abilities(model, adapter), *_wrong_weights(model, adapter), *_wrong_parts(model, adapter)]
    found += _wrong_speculation(model)
    found += [replace(p, where=f"engine.args{p.where}") for p in adapter.argument_problems(model.engine.args)]
    return [replace(problem, where=f"models[{position}].{problem.where}") for problem in found]


def source_problems(model: ModelSpec, position: int) -> Sequence[Problem]:
    """Return the problem of a built-in model that does not exist; other sources are for the nodes to look at."""
    try:
        if is_builtin(model.source):
            describe(model.source)
    except UserInputError as error:
        return (Problem(where=f"models[{position}].source", what=error.message, hint=error.hint),)
    return ()


def _missing_abilities(model: ModelSpec, adapter: EngineAdapter) -> Iterator[Problem]:
    for ability, where, value in _asked(model):
        if ability not in adapter.abilities:
            others = ", ".join(name for name in engine_names() if ability in adapter_for(name).abilities)
            yield Problem(
                where=where,
                what=f"{model.engine.kind} cannot do this: {value}",
                hint=f"{_INSTEAD[ability]}, or write an engine that can: {others}" if others else _INSTEAD[ability],
            )


def _wrong_weights(model: ModelSpec, adapter: EngineAdapter) -> Iterator[Problem]:
    """Yield what is wrong with a source that has no GGUF file, for an engine that is given one."""
    if adapter.weights != "gguf" or is_gguf(model.source) or model.source.startswith("builtin:"):
        return
    what = f"{adapter.kind} needs one GGUF file, and {model.source} names none"
    hint = f"write its file: {model.source.rstrip('/')}{_FILE[is_local_path(model.source)]}, or engine: vllm"
    yield Problem(where="source", what=what, hint=hint)


def _wrong_parts(model: ModelSpec, adapter: EngineAdapter) -> Iterator[Problem]:
    """Yield what is wrong with a part of a GPU: ranks that need a card each, or an engine that would take more."""
    part, split = model.resources.gpus or 1.0, model.parts
    if part >= 1:
        return
    degrees = (("tensor", split.tensor), ("pipeline", split.pipeline), ("data", split.data))
    ranks = [f"{name}: {value}" for name, value in degrees if value != "auto" and value > 1]
    if ranks:
        what = f"gpus: {part:g} with {ranks[0]}: the ranks of one replica need a GPU each"
        yield Problem(where="resources.gpus", what=what, hint="write gpus: 1, or leave the split out")
    if not adapter.shares_cards and part > 0:
        what = f"{adapter.kind} cannot be limited to a part of a GPU: it takes a share of what is free when it starts"
        yield Problem(where="resources.gpus", what=what, hint="write gpus: 1, or engine: vllm")
        return
    told = adapter.memory(model.engine.args, "cuda")
    given = told.memory_ratio if told is not None else _number_after(adapter.memory_flag, model.engine.args)
    if 0 < part < (given or 0):
        what = f"the engine would take {given:g} of a GPU's memory, and the model has gpus: {part:g}"
        hint = f"leave it out ({' '.join(part_of_card(adapter, part)[0])} is set), or write at most {part:g}"
        yield Problem(where="engine.args", what=what, hint=hint)


def _wrong_speculation(model: ModelSpec) -> Iterator[Problem]:
    if model.speculative is not None and model.task != "generate":
        what = f"a model with task: {model.task} generates no tokens that could be proposed"
        yield Problem(where="speculative", what=what, hint="leave it out")


def _number_after(flag: str, args: Sequence[str]) -> float | None:
    """Return the number that the arguments last give for a flag; None where there is none."""
    words = [*args, ""]
    texts = [words[index + 1] if word == flag else word.partition("=")[2] for index, word in enumerate(args)
             if flag and word.partition("=")[0] == flag]  # fmt: skip
    try:
        return float(texts[-1]) if texts else None
    except ValueError:
        return None


_FILE = {True: "/FILE.gguf", False: ":FILE.gguf"}
"""Whether the source is on the nodes → what follows it."""

_INSTEAD: dict[Ability, str] = {
    "tensor": "write tensor: 1",
    "pipeline": "write pipeline: 1",
    "data": "write data: 1, and more replicas",
    "expert": "write expert: false",
    "nodes": "write nodes: 1",
    "layers": "leave layers out",
    "stages": "leave placement.stages out",
    "gguf": "write the folder of the model's safetensors",
    "hub": "write a folder that every node has",
    "options": "leave options out",
    "speculative": "leave it out",
    "media": "leave media.domains out: clients then send data URLs",
    **dict.fromkeys(POOLING_TASKS, "leave task out, for a model that generates text"),
    "adapters": "leave adapters out, and serve merged models",
}


def _asked(model: ModelSpec) -> Iterator[tuple[Ability, str, str]]:
    """Yield each ability that the model needs: its name, the place in the model's entry, and what stands there."""
    split, placement = model.parts, model.placement
    for name, value in (("tensor", split.tensor), ("pipeline", split.pipeline), ("data", split.data)):
        if value != "auto" and value > 1:
            yield name, f"split.{name}", f"{name}: {value}"  # type: ignore[misc]
    if split.expert is True:
        yield "expert", "split.expert", "expert: true"
    if split.layers is not None:
        yield "layers", "split.layers", f"layers: {list(split.layers)}"
    if placement.nodes is not None and placement.nodes > 1:
        yield "nodes", "placement.nodes", f"nodes: {placement.nodes}"
    if placement.stages is not None:
        yield "stages", "placement.stages", "labels of each stage"
    if is_gguf(model.source):
        yield "gguf", "source", f"{model.source} is a GGUF file"
    elif model.source.startswith("hf:") and not is_fetched(model.source):
        yield "hub", "source", f"{model.source} is fetched from a hub"
    if model.speculative is not None:
        yield "speculative", "speculative", f"method: {model.speculative.method}"
    if model.media.domains:
        yield "media", "media.domains", f"fetch media from {model.media.domains[0]} and from nowhere else"
    if model.task != "generate":
        yield model.task, "task", f"task: {model.task}"
    if model.adapters is not None:
        yield "adapters", "adapters", "LoRA adapters"
    if model.engine.given_options:
        yield "options", "engine.options", ", ".join(model.engine.given_options)
