"""What a second ``up`` changes: the difference of two fleets of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longboat.core.errors import UserInputError
from longboat.spec.checks.wording import shown
from longboat.spec.types.external import ExternalModelSpec
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.types.section import Section

__all__ = ("FleetDiff", "ModelChange", "ValueChange", "diff")


Model = ModelSpec | ExternalModelSpec
HIDDEN = "engine.env."
"""Parts of a model whose values are not shown: they may be secrets."""
HARMLESS = ("replicas.", "update.", "load.", "adapters.entries.")
"""Parts of a model whose change replaces no replica."""


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
        return all(change.path == "replicas" or change.path.startswith(HARMLESS) for change in self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDiff:
    """added, removed: names of models, in the order of their file."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[ModelChange, ...] = ()
    gateway: tuple[ValueChange, ...] = ()
    weights: tuple[ValueChange, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.added or self.removed or self.changed or self.gateway or self.weights)

    def lines(self) -> list[str]:
        """Describe the difference for people, one line a change."""
        return [
            *(f"+ {name}" for name in self.added),
            *(f"- {name}" for name in self.removed),
            *(f"~ {model.name}.{change}" for model in self.changed for change in model.changes),
            *(f"~ gateway.{change}" for change in self.gateway),
            *(f"~ weights.{change}" for change in self.weights),
        ]


def diff(old: Fleet, new: Fleet) -> FleetDiff:
    """Compare the running fleet with the one in the file.

    Raises UserInputError where the names differ: a cluster runs one fleet.
    """
    if old.name != new.name:
        raise UserInputError(
            f"name: this cluster runs the fleet {old.name!r}, the file describes {new.name!r}",
            hint=f"write name: {old.name} to change the running one, or end it first: longboat down",
        )
    before, after = _by_name(old), _by_name(new)
    pairs = [(before[name], model) for name, model in after.items() if name in before]
    return FleetDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(_model_change(one, other) for one, other in pairs if one != other),
        gateway=_value_changes(old.gateway, new.gateway),
        weights=_value_changes(old.weights, new.weights),
    )


def _by_name(fleet: Fleet) -> dict[str, Model]:
    return {**{model.name: model for model in fleet.models}, **{model.name: model for model in fleet.external}}


def _model_change(old: Model, new: Model) -> ModelChange:
    return ModelChange(name=new.name, changes=_value_changes(old, new))


def _value_changes(old: Section, new: Section) -> tuple[ValueChange, ...]:
    return tuple(_changes(old.model_dump(by_alias=True), new.model_dump(by_alias=True), ""))


def _changes(old: object, new: object, path: str) -> Iterator[ValueChange]:
    if old == new:
        return
    before, after = _parts(old), _parts(new)
    if before is None or after is None:
        yield ValueChange(path=path, old=_text(old), new=_text(new))
        return
    for key in [*before, *(key for key in after if key not in before)]:
        place = f"{path}.{key}" if path else key
        hidden = place.startswith(HIDDEN) and before.get(key) != after.get(key)
        if hidden:
            yield ValueChange(path=place, old=_hidden(key in before, "old"), new=_hidden(key in after, "new"))
        else:
            yield from _changes(before.get(key), after.get(key), place)


def _hidden(is_set: bool, which: str) -> str:
    return f"({which} value)" if is_set else "unset"


def _parts(value: object) -> dict[str, object] | None:
    """Return the parts of a mapping, or of a list of mappings; entries that have a name go by it, wherever they stand.

    None for a single value, and for a list of single values.
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple) and all(isinstance(item, dict) for item in value):
        return {str(item.get("name", index)): item for index, item in enumerate(value)}
    return None


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, dict):
        given = {key: item for key, item in value.items() if item not in (None, (), {}, "")}
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in given.items()) + "}"
    return value if isinstance(value, str) else shown(value)
