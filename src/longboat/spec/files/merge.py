"""Several fleet files as one: each later file changes and adds to what stands before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from longboat.core.errors import Problem, UserInputError
from longboat.spec.checks.wording import shown
from longboat.spec.text.location import show
from longboat.spec.text.yaml_text import Plain, YamlFile
from longboat.spec.types.external import KIND
from longboat.spec.types.source import name_from_source

__all__ = ("Merged", "line_of", "merged_files")

Mapped = dict[str, Plain]


@dataclass(slots=True, kw_only=True)
class Merged:
    """Values of several files, and where each of them was written."""

    value: Plain = None
    """Plain values of the whole."""
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Place in the whole → file and line that wrote it."""
    problems: list[Problem] = field(default_factory=list)
    """Mistakes of the single files."""


def merged_files(files: Sequence[tuple[str, YamlFile]]) -> Merged:
    """Merge files, each with its name, in their order; one file alone stays as it is.

    Mappings are merged key by key, to any depth. Models are merged by their names: a model that no earlier file has is
    added behind the others. Two models of one file stay two, whatever their names. Every other value of a later file,
    a list too, takes the place of the earlier one.
    Raises UserInputError for a file that is neither a mapping nor a model's source.
    """
    if len(files) == 1:
        ((name, file),) = files
        places = {place: (name, line) for place, line in file.lines.items()}
        return Merged(value=file.value, places=places, problems=list(file.problems))
    whole: Mapped = {}
    merged = Merged()
    for name, file in files:
        moved = _merge(whole, name, file)
        merged.places |= {_moved(place, moved): (name, line) for place, line in file.lines.items()}
        merged.problems += [replace(problem, where=_moved(problem.where, moved)) for problem in file.problems]
    return _external_last(replace(merged, value=whole))


def line_of(places: Mapping[str, tuple[str, int]], where: str) -> tuple[str, int] | None:
    """Return file and line of a place, or of the nearest value around it; None where no file was read."""
    while where and where not in places:
        where = where[: max(where.rfind("."), where.rfind("["), 0)]
    return places.get(where)


def _merge(whole: Mapped, name: str, file: YamlFile) -> dict[str, str]:
    """Merge one file into ``whole``. Return where its models went: place in the file → place in the whole."""
    given: Plain = {"models": [file.value]} if isinstance(file.value, str) else file.value or {}
    if not isinstance(given, dict):
        what = f"{name}: {shown(file.value)} is not a mapping"
        raise UserInputError(what, hint="write models: in front of a list, and fields as name: value")
    before, after = whole.get("models"), given.get("models")
    whole |= _deep(whole, {key: item for key, item in given.items() if key != "models"})
    if not isinstance(after, list):
        whole |= {"models": after} if "models" in given else {}
        return {}
    found = list(before) if isinstance(before, list) else []
    whole["models"] = found
    places: dict[str, int] = {}
    for index, model in enumerate(found):
        places.setdefault(_name(model), index)
    return {show(("models", index)): show(("models", _put(model, found, places))) for index, model in enumerate(after)}


def _put(written: Plain, found: list[Plain], places: dict[str, int]) -> int:
    """Merge a model into the one of its name, or add it. Return its place.

    places: name → place of the models of earlier files; a place is given only once
    """
    model = _spelled(written)
    name = _name(model)
    if name and (index := places.pop(name, None)) is not None:
        found[index] = _deep(_mapping(found[index]), _mapping(model))
        return index
    found.append(model)
    return len(found) - 1


def _deep(before: Mapped, after: Mapped) -> Mapped:
    value = dict(before)
    for key, item in after.items():
        old = value.get(key)
        value[key] = _deep(old, item) if isinstance(old, dict) and isinstance(item, dict) else item
    return value


def _spelled(model: Plain) -> Plain:
    """Return a model with the short forms spelled out that could not be merged otherwise."""
    if isinstance(model, str):
        return {"source": model}
    if isinstance(model, dict) and isinstance(engine := model.get("engine"), str):
        return {**model, "engine": {"kind": engine}}
    return model


def _name(model: Plain) -> str:
    """Return the name that a model has or will get; empty where there is none."""
    name, source = _mapping(model).get("name"), _mapping(model).get("source")
    if isinstance(name, str):
        return name
    return name_from_source(source) if isinstance(source, str) else ""


def _mapping(value: Plain) -> Mapped:
    return value if isinstance(value, dict) else {}


def _external_last(merged: Merged) -> Merged:
    """Move external models behind all others, as the fleet file wants them."""
    whole = _mapping(merged.value)
    models = whole.get("models")
    if not isinstance(models, list):
        return merged
    order = sorted(range(len(models)), key=lambda at: _mapping(_mapping(models[at]).get("engine")).get("kind") == KIND)
    whole["models"] = [models[at] for at in order]
    moved = {show(("models", old)): show(("models", new)) for new, old in enumerate(order)}
    places = {_moved(place, moved): at for place, at in merged.places.items()}
    problems = [replace(problem, where=_moved(problem.where, moved)) for problem in merged.problems]
    return Merged(value=whole, places=places, problems=problems)


def _moved(place: str, moved: Mapping[str, str]) -> str:
    head, bracket, rest = place.partition("]")
    return moved.get(head + bracket, head + bracket) + rest
