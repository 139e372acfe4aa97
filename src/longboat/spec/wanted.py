"""From models of the fleet file to what the planner reads, and back with the numbers that it found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from longboat.core.scaling import Objective
from longboat.core.wanted import EngineSplits, Placement, WantedLoad, WantedModel, WantedRank
from longboat.spec.types.fleet import Fleet, LoadSpec, ModelSpec, PlacementSpec, SplitSpec
from longboat.spec.types.replicas import ReplicasSpec

__all__ = ("fleet_with_numbers", "spec_with_numbers", "wanted_model", "wanted_models")

LENGTHS = {"prompt_tokens", "output_tokens"}
# What replicas that run need not share with those that are wanted, and what the other fields hold already.
NOT_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(
        ("replicas", "update", "load", "split", "placement", "resources", "context", "name", "source"), True
    ),
    "adapters": {"entries"},
}


SplitsOf = Callable[[str], EngineSplits]


def wanted_models(fleet: Fleet, splits_of: SplitsOf) -> tuple[WantedModel, ...]:
    """Return the fleet's models in the order of the file. splits_of: how an engine can split a model, by its name."""
    return tuple(wanted_model(model, splits_of) for model in fleet.models)


def wanted_model(spec: ModelSpec, splits_of: SplitsOf) -> WantedModel:
    """Return ``spec`` in the planner's words."""
    parts = spec.parts
    return WantedModel(
        name=spec.name,
        source=spec.source,
        engine=spec.engine.kind,
        splits=splits_of(spec.engine.kind),
        task=spec.task,
        overrides_config=any(word.startswith("--hf-overrides") for word in spec.engine.args),
        environment=spec.engine.environment,
        settings=_settings(spec),
        replicas=None if spec.replicas == "auto" else spec.num_replicas,
        max_replicas=spec.replicas.max if isinstance(spec.replicas, ReplicasSpec) else None,
        objectives=_objectives(spec),
        tensor=None if parts.tensor == "auto" else parts.tensor,
        pipeline=None if parts.pipeline == "auto" else parts.pipeline,
        data=None if parts.data == "auto" else parts.data,
        expert=None if parts.expert == "auto" else parts.expert,
        layers=parts.layers or (),
        context=spec.context,
        speculative_tokens=spec.speculative.tokens if spec.speculative else 0,
        load=_load(spec.load),
        rank=WantedRank(
            num_cpus=spec.resources.cpus, num_gpus=spec.resources.gpus, memory_bytes=spec.resources.memory_bytes
        ),
        placement=Placement(
            labels=spec.placement.labels, nodes=spec.placement.nodes, stages=spec.placement.stages or ()
        ),
    )


def _load(load: LoadSpec) -> WantedLoad:
    return WantedLoad(
        users=load.users,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        images=load.images,
        lengths_given=bool(LENGTHS & load.model_fields_set),
        ttft_ms=load.ttft_ms,
        itl_ms=load.itl_ms,
    )


def _objectives(spec: ModelSpec) -> tuple[Objective, ...]:
    ruled = spec.replicas
    entries = ruled.slo or () if isinstance(ruled, ReplicasSpec) else ()
    return tuple(Objective(**entry.model_dump()) for entry in entries)


def _settings(spec: ModelSpec) -> str:
    values = spec.model_dump(mode="json", exclude=NOT_SETTINGS)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def fleet_with_numbers(fleet: Fleet, decided: Iterable[WantedModel]) -> Fleet:
    """Return the fleet with the numbers that were decided; models that are not among them stay as they are."""
    found = {model.name: model for model in decided}
    models = tuple(
        spec_with_numbers(model, found[model.name]) if model.name in found else model for model in fleet.models
    )
    return fleet.model_copy(update={"models": models})


def spec_with_numbers(spec: ModelSpec, decided: WantedModel) -> ModelSpec:
    """Return ``spec`` with replicas, split and placement as decided; what is the same is left as it is written."""
    if (written := wanted_model(spec, lambda _: decided.splits)) == decided:
        return spec
    update: dict[str, Any] = {}
    if decided.replicas != written.replicas:
        update["replicas"] = "auto" if decided.replicas is None else decided.replicas
    if _split(written) != _split(decided):
        update["split"] = SplitSpec(
            tensor=decided.tensor or "auto",
            pipeline=decided.pipeline or "auto",
            data=decided.data or "auto",
            expert="auto" if decided.expert is None else decided.expert,
            layers=decided.layers or None,
        )
    if written.placement != decided.placement:
        told = decided.placement
        update["placement"] = PlacementSpec(
            labels=dict(told.labels),
            nodes=told.nodes,
            stages=tuple(dict(labels) for labels in told.stages) or None,
        )
    return spec.model_copy(update=update)


def _split(model: WantedModel) -> tuple[object, ...]:
    return model.tensor, model.pipeline, model.data, model.expert, model.layers
