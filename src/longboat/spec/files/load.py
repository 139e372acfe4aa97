"""Text to Fleet: short forms are spelled out, later work is refused, and every mistake is reported at once."""

from __future__ import annotations

import os.path
from collections import Counter
from dataclasses import dataclass, field

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from longboat.core.errors import NotYetError, Problem, UserInputError
from longboat.spec.checks.branches import without_branches
from longboat.spec.checks.gateway_checks import gateway_problems
from longboat.spec.checks.mistakes import problem_of, shown
from longboat.spec.checks.not_yet import take_later
from longboat.spec.text.location import Path, show
from longboat.spec.text.yaml_text import Plain, parse_yaml
from longboat.spec.types.fleet import Fleet
from longboat.spec.types.gateway import GatewaySpec
from longboat.spec.types.section import LATER
from longboat.spec.types.source import check_source, name_from_source

__all__ = ("fleet_from", "fleet_from_source", "load_fleet")

NO_NAME = "name is missing"


def load_fleet(text: str, origin: str, *, folder: str | None = None) -> Fleet:
    """The fleet that a file describes.

    origin: the file's name, for messages; folder: absolute, where relative paths of the hints start (None: origin's).
    Raises UserInputError with all problems found; NotYetError where all of them are of the kind "not yet".
    """
    try:
        data = parse_yaml(text)
    except UserInputError as error:
        raise _refusal(list(error.problems), origin, later=False) from None
    return fleet_from(data, origin, folder=folder or os.path.dirname(os.path.abspath(origin)))


def fleet_from_source(source: str, *, folder: str) -> Fleet:
    """The fleet of ``longboat up MODEL``: one model, everything else by default.

    Raises UserInputError as load_fleet does.
    """
    return fleet_from({"models": [source]}, source, folder=folder)


def fleet_from(data: object, origin: str, *, folder: str) -> Fleet:
    """The fleet that plain values (of JSON, or of YAML) describe; ``data`` is not changed.

    Raises UserInputError as load_fleet does.
    """
    spelled = _Spelled()
    plain = _copy(data)
    whole = spelled.file(plain)
    if whole is None:
        problem = _not_a_fleet(plain)
        raise _refusal([problem], origin, later=False)
    problems = take_later(whole)
    num_later = len(problems)
    spelled.models(whole)
    problems += _same_names(whole, spelled.sugar)
    values = spelled.tuples(whole)
    problems += _between_parts(values)
    try:
        fleet = Fleet.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        errors = without_branches(error.errors(include_url=False))
        details = [detail for detail in errors if not _is_consequence(detail, whole)]
        num_later += sum(detail["type"] == LATER for detail in details)
        problems += [problem_of(detail, spelled.sugar) for detail in details]
        problems = _without_consequences(problems)
    if problems:
        raise _refusal(problems, origin, later=num_later == len(problems))
    return fleet


def _not_a_fleet(data: Plain) -> Problem:
    hint = "the smallest fleet file is one line: builtin:tiny"
    if data is None:
        return Problem(where="", what="the file is empty", hint=hint)
    if isinstance(data, list):
        return Problem(where="", what="the file is a list", hint="write models: in front of the list")
    return Problem(where="", what=f"the file is {shown(data)}, not a fleet", hint=hint)


def _refusal(problems: list[Problem], origin: str, *, later: bool) -> UserInputError:
    kind = NotYetError if later else UserInputError
    first = problems[0]
    message = f"{origin}: {first}" if len(problems) == 1 else f"{origin}: {len(problems)} problems"
    return kind(message, hint=first.hint, problems=tuple(problems))


def _same_names(data: dict[str, Plain], sugar: dict[Path, Path]) -> list[Problem]:
    models = data.get("models")
    names = (
        [model.get("name") if isinstance(model, dict) else None for model in models] if isinstance(models, list) else []
    )
    count = Counter(name for name in names if isinstance(name, str))
    problems = []
    for index, name in enumerate(names):
        if isinstance(name, str) and count[name] > 1 and (first := names.index(name)) != index:
            path: Path = ("models", index, "name")
            what = f"{name!r} is the name of models[{first}] already"
            hint = f"give one of them another name: {_free_name(name, count)}"
            problems.append(Problem(where=show(sugar.get(path, path)), what=what, hint=hint))
    return problems


def _between_parts(values: object) -> list[Problem]:
    """What the gateway's parts and the models' names make wrong together, once each is right by itself."""
    assert isinstance(values, dict)
    models = values.get("models")
    names = [m.get("name") for m in models if isinstance(m, dict)] if isinstance(models, tuple) else []
    try:
        gateway = GatewaySpec.model_validate(values.get("gateway", {}))
    except ValidationError:
        return []
    known = [name for name in names if isinstance(name, str)]
    return gateway_problems(gateway, known) if known and len(known) == len(names) else []


def _free_name(name: str, taken: Counter[str]) -> str:
    return next(free for number in range(2, len(taken) + 3) if (free := f"{name}-{number}") not in taken)


def _is_consequence(detail: ErrorDetails, data: dict[str, Plain]) -> bool:
    """pydantic counts only good entries: a list with one bad entry is "too short" besides."""
    return detail["type"] == "too_short" and bool(data.get("models"))


def _without_consequences(problems: list[Problem]) -> list[Problem]:
    """A missing name follows from a source that cannot be used: the source is the mistake."""
    places = {problem.where for problem in problems if problem.what != NO_NAME}

    def is_one(problem: Problem) -> bool:
        return problem.what == NO_NAME and bool(places & {problem.where, problem.where.removesuffix("name") + "source"})

    return [problem for problem in problems if not is_one(problem)]


@dataclass(slots=True)
class _Spelled:
    """The file with its short forms spelled out. sugar: path in the long form → path as written."""

    sugar: dict[Path, Path] = field(default_factory=dict)

    def file(self, data: Plain) -> dict[str, Plain] | None:
        """The whole file as a mapping; None where it is none."""
        if isinstance(data, str):
            self.sugar[("models",)] = ()
            self.sugar[("models", 0)] = ()
            return {"models": [data]}
        return data if isinstance(data, dict) else None

    def models(self, data: dict[str, Plain]) -> None:
        models = data.get("models")
        if isinstance(models, list):
            for index, model in enumerate(models):
                models[index] = self.model(model, ("models", index))

    def model(self, model: Plain, path: Path) -> Plain:
        if isinstance(model, str):
            written = self.sugar.get(path, path)
            self.sugar |= {(*path, "source"): written, (*path, "name"): written}
            model = {"source": model}
        if not isinstance(model, dict):
            return model
        if isinstance(engine := model.get("engine"), str):
            model["engine"] = {"kind": engine}
            self.sugar[(*path, "engine", "kind")] = (*path, "engine")
        source = model.get("source")
        usable = isinstance(source, str) and check_source(source, "/") is None
        if "name" not in model and usable and (name := name_from_source(str(source))):
            model["name"] = name
            self.sugar.setdefault((*path, "name"), (*path, "source"))
        return model

    def tuples(self, value: Plain) -> object:
        """Lists as tuples, as the frozen types want them."""
        if isinstance(value, list):
            return tuple(self.tuples(item) for item in value)
        if isinstance(value, dict):
            return {key: self.tuples(item) for key, item in value.items()}
        return value


def _copy(value: object) -> Plain:
    """A copy of plain values; what is not plain becomes text, which no field but text takes."""
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _copy(item) for key, item in value.items()}
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
