"""What a second ``up`` changes: the difference of two fleets of the same name."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.core.errors import UserInputError
from longboat.spec.fleet import Fleet, ModelSpec
from longboat.spec.gateway import GatewaySpec
from longboat.spec.mistakes import shown

__all__ = ("FleetDiff", "ModelChange", "ValueChange", "diff")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChange:
    """One value that differs. path: from the model, or from the gateway; old, new: as the user would write them."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """One model that both fleets have, with what differs."""

    name: str
    changes: tuple[ValueChange, ...]

    @property
    def only_replicas(self) -> bool:
        """Whether running replicas can stay as they are."""
        return all(change.path == "replicas" for change in self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDiff:
    """added, removed: names of models, in the order of their file."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[ModelChange, ...] = ()
    gateway: tuple[ValueChange, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.added or self.removed or self.changed or self.gateway)

    def lines(self) -> list[str]:
        """The difference for people, one line a change."""
        return [
            *(f"+ {name}" for name in self.added),
            *(f"- {name}" for name in self.removed),
            *(f"~ {model.name}.{change}" for model in self.changed for change in model.changes),
            *(f"~ gateway.{change}" for change in self.gateway),
        ]


def diff(old: Fleet, new: Fleet) -> FleetDiff:
    """What changes from the running fleet to the one in the file.

    Raises UserInputError where the names differ: a cluster runs one fleet.
    """
    if old.name != new.name:
        raise UserInputError(
            f"name: this cluster runs the fleet {old.name!r}, the file describes {new.name!r}",
            hint=f"write name: {old.name} to change the running one, or end it first: longboat down",
        )
    before = {model.name: model for model in old.models}
    after = {model.name: model for model in new.models}
    pairs = [(before[name], model) for name, model in after.items() if name in before]
    return FleetDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(_model_change(one, other) for one, other in pairs if one != other),
        gateway=_value_changes(old.gateway, new.gateway),
    )


def _model_change(old: ModelSpec, new: ModelSpec) -> ModelChange:
    return ModelChange(name=new.name, changes=_value_changes(old, new))


def _value_changes(old: ModelSpec | GatewaySpec, new: ModelSpec | GatewaySpec) -> tuple[ValueChange, ...]:
    before, after = _leaves(old.model_dump(by_alias=True), ""), _leaves(new.model_dump(by_alias=True), "")
    paths = [*before, *(path for path in after if path not in before)]
    return tuple(
        ValueChange(path=path, old=_text(before.get(path)), new=_text(after.get(path)))
        for path in paths
        if before.get(path) != after.get(path)
    )


def _leaves(data: dict[str, object], prefix: str) -> dict[str, object]:
    leaves: dict[str, object] = {}
    for key, value in data.items():
        path = f"{prefix}.{key}" if prefix else key
        leaves |= _leaves(value, path) if isinstance(value, dict) else {path: value}
    return leaves


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return value if isinstance(value, str) else shown(value)
