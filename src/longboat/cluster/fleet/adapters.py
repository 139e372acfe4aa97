"""The adapters of a fleet in the controller's values, and what each model's replicas are to know. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat.cluster.protocol.model import WantedAdapter
from longboat.spec.types.adapters import DEFAULT_RANK, AdaptersSpec
from longboat.spec.types.fleet import Fleet

__all__ = ("adapter_values", "room_values", "wanted_adapters")


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
