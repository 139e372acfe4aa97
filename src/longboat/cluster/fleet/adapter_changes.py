"""Changes of a running fleet's adapters: the fleet's file, and the controller's values with it. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from longboat.cluster.fleet.adapters import adapter_values
from longboat.core.errors import UserInputError
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import adapter_rights
from longboat.spec.types.adapters import AdapterSpec, AdaptersSpec
from longboat.spec.types.fleet import Fleet, ModelSpec

__all__ = ("running_fleet", "values_with_adapters", "with_adapter", "without_adapter", "without_adapters")

ORIGIN = "the running fleet"


def running_fleet(values: Mapping[str, Any]) -> Fleet:
    """Return the fleet that the controller's values describe."""
    return load_fleet(str(values["text"]), ORIGIN)


def with_adapter(fleet: Fleet, model: str, entry: AdapterSpec) -> Fleet:
    """Return the fleet with this adapter; one of the same name and model is replaced.

    Raises UserInputError where the model has no room for adapters, or the name means something else already.
    """
    spec = _with_room(fleet, model)
    others = tuple(other for other in spec.entries if other.name != entry.name)
    changed = _changed(fleet, model, spec.model_copy(update={"entries": (*others, entry)}))
    return load_fleet(dump_fleet(changed), ORIGIN)  # finds names that mean something else


def without_adapter(fleet: Fleet, name: str) -> Fleet:
    """Return the fleet without this adapter. Raises UserInputError where there is none of that name."""
    owner = next((model for model, entry in fleet.adapters() if entry.name == name), None)
    if owner is None or owner.adapters is None:
        names = ", ".join(entry.name for _, entry in fleet.adapters()) or "none"
        raise UserInputError(f"there is no adapter {name!r}", hint=f"adapters: {names}")
    entries = tuple(entry for entry in owner.adapters.entries if entry.name != name)
    changed = _changed(fleet, owner.name, owner.adapters.model_copy(update={"entries": entries}))
    return load_fleet(dump_fleet(changed), ORIGIN)  # finds aliases and rules that need it


def without_adapters(fleet: Fleet, model: str) -> Fleet:
    """Return the fleet with only this model, and without its adapters; its room stays."""
    found = fleet.model_named(model)
    assert found is not None
    room = _with_room(fleet, model).model_copy(update={"entries": ()})  # they may name tenants, which are left out too
    bare = found.model_copy(update={"adapters": room})
    return load_fleet(dump_fleet(Fleet(name=fleet.name, models=(bare,))), ORIGIN)


def values_with_adapters(values: Mapping[str, Any], fleet: Fleet) -> dict[str, Any]:
    """Return the controller's values with the adapters of ``fleet``. No replica is replaced by that."""
    served = fleet.served()
    told = {
        "adapters": [dataclasses.asdict(right) for right in adapter_rights(fleet.adapters())],
        "tasks": {name: model.task for name, model in served.items()},
        "media": {name: dataclasses.asdict(model.media.rules) for name, model in served.items()},
    }
    policy = {**values.get("policy", {}), **json.loads(json.dumps(told))}
    return {**values, "text": dump_fleet(fleet), "adapters": adapter_values(fleet), "policy": policy}


def _with_room(fleet: Fleet, name: str) -> AdaptersSpec:
    model = fleet.model_named(name)
    if model is None:
        raise UserInputError(f"there is no model {name!r}", hint=f"models: {', '.join(m.name for m in fleet.models)}")
    if model.adapters is None:
        hint = "write adapters: {slots: 8} in its entry of the fleet file, and run longboat up"
        raise UserInputError(f"the replicas of {name} were started without room for adapters", hint=hint)
    return model.adapters


def _changed(fleet: Fleet, name: str, spec: AdaptersSpec) -> Fleet:
    def one(model: ModelSpec) -> ModelSpec:
        return model.model_copy(update={"adapters": spec}) if model.name == name else model

    return fleet.model_copy(update={"models": tuple(one(model) for model in fleet.models)})
