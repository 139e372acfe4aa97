"""Counts that an operator asked for, kept in the controller's values until the next ``longboat up``. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longboat.core.errors import UserInputError
from longboat.core.scaling import ScaledModel

__all__ = ("HOLDS", "Hold", "checked_hold", "commands_of", "read_holds", "values_with_hold")

HOLDS = "holds"
"""The name of the holds among the controller's values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What an operator asked for. A model without a hold follows the fleet file."""

    asked: int | None = None  # replicas; None: the fleet file decides, once the model is not paused
    paused: bool = False
    by: str = ""  # the operator: user@host
    since_s: float = 0.0  # Unix seconds


def read_holds(values: Mapping[str, Any]) -> dict[str, Hold]:
    """Read model → its hold from the controller's values."""
    return {model: Hold(**entry) for model, entry in values.get(HOLDS, {}).items()}


def commands_of(holds: Mapping[str, Hold]) -> list[str]:
    """Return the commands after which a fleet that follows its file has these holds."""
    found = []
    for model, hold in sorted(holds.items()):
        found += [f"longboat scale {model} {hold.asked}"] if hold.asked is not None else []
        found += [f"longboat pause {model}"] if hold.paused else []
    return found


def values_with_hold(values: Mapping[str, Any], model: str, hold: Hold) -> dict[str, Any]:
    """Return the controller's values with another hold of this model; one that asks for nothing is removed."""
    holds = {name: entry for name, entry in values.get(HOLDS, {}).items() if name != model}
    if hold.paused or hold.asked is not None:
        holds[model] = dataclasses.asdict(hold)
    return {**values, HOLDS: holds}


def checked_hold(models: Mapping[str, ScaledModel], name: str, hold: Hold) -> Hold:
    """Return ``hold`` where the model can have it.

    Raises UserInputError where there is no such model, or the count is out of its bounds.
    """
    model = models.get(name)
    if model is None:
        raise UserInputError(f"there is no model {name!r}", hint=f"models: {', '.join(models) or 'none'}")
    if model.max_replicas == 0:
        hint = "write replicas: 1, or more, in the fleet file, and run longboat up"
        raise UserInputError(f"{name} has replicas: 0 in the fleet file, so that it was never placed", hint=hint)
    if hold.asked is not None:
        _check_count(model, hold.asked)
    return hold


def _check_count(model: ScaledModel, asked: int) -> None:
    if asked < 1:
        hint = f"longboat pause {model.name} takes all replicas out of use; longboat resume {model.name} ends that"
        raise UserInputError(f"{asked} replicas of {model.name} are fewer than 1", hint=hint)
    follows_load = model.max_replicas > model.min_replicas
    if follows_load and asked > model.max_replicas:
        hint = f"ask for {model.max_replicas}, or write another max in the fleet file, and run longboat up"
        raise UserInputError(f"{asked} replicas of {model.name} are more than its max, {model.max_replicas}", hint=hint)
