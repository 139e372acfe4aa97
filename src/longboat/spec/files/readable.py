"""Models with mistakes, read without the values that are wrong: what else is wrong with them can then be found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from longboat.core.errors import Problem
from longboat.spec.checks.branches import without_branches
from longboat.spec.text.location import Path
from longboat.spec.types.fleet import ModelSpec

__all__ = ("ReadableModel", "readable_models")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableModel:
    """A model with mistakes, with defaults in place of the values that are wrong."""

    spec: ModelSpec
    position: int  # in the file's list of models
    told: tuple[str, ...]  # the places of its mistakes
    has_engine: bool  # whether the file says which engine serves it

    def placed(self, problems: Iterable[Problem]) -> list[Problem]:
        """Return the problems that no known mistake causes. Their places are those in the file."""
        return [problem for problem in problems if not any(_meet(problem.where, where) for where in self.told)]


def readable_models(
    models: Iterable[tuple[int, object]], problems: Sequence[Problem], folder: str
) -> tuple[ReadableModel, ...]:
    """Return the models that problems name, as far as they can be read.

    models: plain values, with tuples for lists; each with its position in the file
    """
    found = []
    for index, model in models:
        place = f"models[{index}]"
        told = tuple(problem.where for problem in problems if _meet(problem.where, place))
        if told and isinstance(model, dict) and (read := _read(model, folder)) is not None:
            spec, has_engine = read
            found.append(ReadableModel(spec=spec, position=index, told=told, has_engine=has_engine))
    return tuple(found)


def _read(values: Mapping[str, object], folder: str) -> tuple[ModelSpec, bool] | None:
    """Return the model, and whether its engine is what the file says; None where its source cannot be used."""
    given = {"name": "unnamed", **values}
    has_engine = True
    for depth in (2, 1, 0):
        try:
            return ModelSpec.model_validate(given, context={"folder": folder}), has_engine
        except ValidationError as error:
            details = list(without_branches(error.errors(include_url=False)))
        has_engine = has_engine and not any(_hides_engine(detail, values) for detail in details)
        given = {"name": "unnamed", **_without(given, [detail["loc"][:depth] for detail in details])}
    return None


def _hides_engine(detail: ErrorDetails, values: Mapping[str, object]) -> bool:
    """Return whether a mistake leaves the engine open: in its kind, or a field that may be meant as the kind."""
    path, engine = detail["loc"], values.get("engine")
    is_given = isinstance(engine, dict) and "kind" in engine
    is_unknown = detail["type"] == "extra_forbidden" and path[:-1] in ((), ("engine",))
    return path in (("engine",), ("engine", "kind")) or (is_unknown and not is_given)


def _without(values: Mapping[str, object], paths: Sequence[Path]) -> dict[str, object]:
    kept: dict[str, object] = {}
    for name, value in values.items():
        if (name,) in paths:
            continue
        inner = {path[1] for path in paths if len(path) > 1 and path[0] == name}
        kept[name] = (
            {key: item for key, item in value.items() if key not in inner} if isinstance(value, dict) else value
        )
    return kept


def _meet(one: str, other: str) -> bool:
    """Return whether one of two places is the other, or stands in it."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and (len(long) == len(short) or long[len(short)] in ".[")
