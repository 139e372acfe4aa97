"""The adapters of a fleet: in the controller's values, what each model's replicas are to know, and changes. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from longboat.cluster.protocol.model import WantedAdapter
from longboat.core.errors import UserInputError
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import adapter_rights, prices_of
from longboat.spec.types.adapters import DEFAULT_RANK, AdapterSpec, AdaptersSpec
from longboat.spec.types.fleet import Fleet, ModelSpec

__all__ = (
    "adapter_values",
    "room_values",
    "running_fleet",
    "values_with_adapters",
    "wanted_adapters",
    "with_adapter",
    "with_adapters_of",
    "without_adapter",
    "without_adapters",
)

ORIGIN = "the running fleet"


def adapter_values(fleet: Fleet) -> dict[str, list[dict[str, str]]]:
    """Return model → its adapters, as the controller keeps them; those without a revision were not looked at yet."""
    found: dict[str, list[dict[str, str]]] = {model.name: [] for model in fleet.models if model.adapters is not None}
    for model, entry in fleet.adapters():
        if entry.revision is not None:
            found[model.name].append({"name": entry.name, "source": entry.source, "revision": entry.revision})
    return found


def room_values(spec: AdaptersSpec) -> dict[str, int]:
    """Return the room with which a model's engines are started; a change of it starts other replicas."""
    return {"slots": spec.slots, "held": spec.num_held, "rank": spec.rank or DEFAULT_RANK}


def wanted_adapters(values: Mapping[str, Any], model: str) -> tuple[WantedAdapter, ...] | None:
    """Return what the replicas of a model are to know; None while the controller has no values."""
    if not values:
        return None
    return tuple(WantedAdapter(**entry) for entry in values.get("adapters", {}).get(model, ()))


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


def with_adapters_of(asked: Fleet, running: Fleet) -> Fleet:
    """Return the fleet file as it was asked for, with the adapters that commands added to and took out of the fleet.

    A revision stays only where the file has one: elsewhere the next ``up`` takes what the folder then holds.
    """
    for model in running.models:
        before = asked.model_named(model.name)
        if model.adapters is None or before is None or before.adapters is None:
            continue
        entries = tuple(_as_in(before.adapters, entry) for entry in model.adapters.entries)
        if entries != before.adapters.entries:
            asked = _changed(asked, model.name, before.adapters.model_copy(update={"entries": entries}))
    return asked


def _as_in(before: AdaptersSpec, entry: AdapterSpec) -> AdapterSpec:
    was = before.named(entry.name)
    return entry if was is not None and was.revision else entry.model_copy(update={"revision": None})


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
    served, prices = fleet.served(), prices_of(fleet.gateway, fleet.adapters()).items()
    told = {
        "adapters": [dataclasses.asdict(right) for right in adapter_rights(fleet.adapters())],
        "tasks": {name: model.task for name, model in served.items()},
        "media": {name: dataclasses.asdict(model.media.rules) for name, model in served.items()},
        "prices": {name: dataclasses.asdict(price) for name, price in prices},
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
