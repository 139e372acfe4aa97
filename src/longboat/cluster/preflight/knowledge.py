"""What is known of a fleet's models and nodes: weights from their configs, settings, memory, accelerators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath

from longboat.builtin import describe, is_builtin
from longboat.catalog.formats.hf_config import parse_config
from longboat.catalog.library import Library, built_in_library
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cluster.preflight.checks import NodeFindings
from longboat.core.errors import LongboatError, UserInputError
from longboat.core.plan import AdapterRoom, EngineMemory
from longboat.engines.card_parts import planned_memory
from longboat.engines.model_arguments import arguments_of
from longboat.engines.registry import adapter_for
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.memory.draft import eagle_draft, mtp_draft
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.constants import Calibration
from longboat.spec.types.adapters import DEFAULT_RANK
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.types.source import is_fetched, is_gguf, is_local_path

__all__ = ("Basis", "built_in_basis", "shape_of", "shape_of_file", "with_knowledge")

HUB = "hf:"
SPECULATION = "--speculative-config"
"""The flag behind ``speculative``. Its memory is known where the proposing model's shape is."""
_STATES = {"eagle": 1, "eagle3": 3}
"""Kind of EAGLE head → the hidden states of the model that it joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What planning starts from. read_hub: the shape of ``organisation/name``, asked for where it must be known.

    read_hub raises UserInputError or TransferError.
    """

    library: Library
    calibration: Calibration
    read_hub: Callable[[str], ModelShape] | None = None


def built_in_basis() -> Basis:
    """Return the catalog and calibration that come with Longboat; no network is used."""
    return Basis(library=built_in_library(), calibration=built_in_calibration())


def with_knowledge(
    inputs: PlannerInputs, fleet: Fleet, findings: Mapping[str, NodeFindings], basis: Basis
) -> PlannerInputs:
    """Add what is known of models and nodes to ``inputs``; what is not known is named there, and raises nothing.

    findings: by node
    """
    shapes: dict[str, ModelShape] = {}
    unknown: dict[str, str] = {}
    memory: dict[str, EngineMemory] = {}
    drafts: dict[str, ModelShape] = {}
    for model in fleet.models:
        platform = inputs.platforms.get(model.name, "cpu")
        told = planned_memory(adapter_for(model.engine.kind), arguments_of(model), platform, model.resources.gpus)
        if told is None:
            continue
        memory[model.name] = replace(told, adapters=_room(model))
        try:
            shapes[model.name] = shape_of(model, findings, basis)
        except LongboatError as error:
            unknown[model.name] = error.message
        if draft := _draft_shape(model, shapes.get(model.name), findings, basis):
            drafts[model.name] = draft
            unknown_flags = tuple(flag for flag in told.unknown if flag != SPECULATION)
            memory[model.name] = replace(memory[model.name], unknown=unknown_flags)
    return replace(
        inputs,
        library=basis.library,
        calibration=basis.calibration,
        shapes=shapes,
        drafts=drafts,
        unknown=unknown,
        memory=memory,
        memory_bytes={node: found.memory_bytes for node, found in findings.items() if found.memory_bytes},
        accelerators={node: found.accelerator for node, found in findings.items() if found.accelerator},
    )


def _room(model: ModelSpec) -> AdapterRoom | None:
    spec = model.adapters
    return AdapterRoom(slots=spec.slots, held=spec.num_held, rank=spec.rank or DEFAULT_RANK) if spec else None


def _draft_shape(
    model: ModelSpec, shape: ModelShape | None, findings: Mapping[str, NodeFindings], basis: Basis
) -> ModelShape | None:
    """Return the shape of what proposes tokens; None where nothing does, or it is not known."""
    told = model.speculative
    if told is not None and told.method == "mtp":
        return mtp_draft(shape) if shape is not None else None
    if told is None or told.model is None:
        return None
    try:
        found = shape_of(model.model_copy(update={"source": told.model}), findings, basis)
    except LongboatError:
        return None
    if told.method == "draft":
        return found
    return eagle_draft(found, shape, states=_STATES[told.method]) if shape is not None else None


def shape_of(model: ModelSpec, findings: Mapping[str, NodeFindings], basis: Basis) -> ModelShape:
    """Find the model's shape. Raises LongboatError where it cannot be found out."""
    if is_builtin(model.source):
        told = describe(model.source)
        return shape_from_config(told.config, name=told.name)
    if is_fetched(model.source) and is_gguf(model.source):
        raise UserInputError(f"{model.source} is read only after it was fetched")
    if is_local_path(model.source) or is_fetched(model.source):
        return shape_of_file(model.source, findings) or _shape_of_folder(model.source, findings)
    return _shape_of_hub(model, basis)


def shape_of_file(source: str, findings: Mapping[str, NodeFindings]) -> ModelShape | None:
    """Return the shape of a GGUF file, as the first node that has it reads it."""
    found = [finding.paths[source].shape for finding in findings.values() if source in finding.paths]
    return next((shape for shape in found if shape is not None), None)


def _shape_of_folder(source: str, findings: Mapping[str, NodeFindings]) -> ModelShape:
    found = [finding.paths[source].config for finding in findings.values() if source in finding.paths]
    text = next((config for config in found if config), "")
    if not text:
        raise UserInputError(f"no node has a config.json in {source}")
    return shape_from_config(parse_config(text, f"{source}/config.json"), name=PurePath(source).name)


def _shape_of_hub(model: ModelSpec, basis: Basis) -> ModelShape:
    """Find the shape in the catalog; the network is asked only where the file leaves something to be decided."""
    from longboat.catalog.model_entry import shape_of_entry

    name = model.source.removeprefix(HUB)
    if is_gguf(name):
        raise UserInputError(f"{name} is read only after it was fetched")
    entry = basis.library.published_as(name)
    readers = [partial(shape_of_entry, entry)] if entry else []
    if not readers and basis.read_hub and not model.is_decided:
        readers = [partial(basis.read_hub, name)]
    if not readers:
        raise UserInputError(f"{name} is not in the catalog")
    return readers[0]()
