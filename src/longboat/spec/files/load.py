"""Text to Fleet: short forms are spelled out, later work is refused, and every mistake is reported at once."""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from longboat.core.errors import NotYetError, Problem, UserInputError
from longboat.spec.checks.adapter_names import adapter_name_problems, adapter_names
from longboat.spec.checks.branches import without_branches
from longboat.spec.checks.gateway_checks import gateway_problems
from longboat.spec.checks.mistakes import is_consequence, problem_of
from longboat.spec.checks.not_yet import take_later
from longboat.spec.checks.refusal import refusal
from longboat.spec.checks.task_checks import task_problems
from longboat.spec.checks.wording import shown
from longboat.spec.files.merge import line_of, merged_files
from longboat.spec.files.readable import ReadableModel, readable_models
from longboat.spec.text.location import Path, show
from longboat.spec.text.yaml_text import Plain, read_yaml
from longboat.spec.types.external import KIND
from longboat.spec.types.fleet import Fleet
from longboat.spec.types.gateway import AdminSpec, GatewaySpec
from longboat.spec.types.gateway_parts import currency_of, parts_of
from longboat.spec.types.section import LATER
from longboat.spec.types.source import check_source, name_from_source

__all__ = ("Reading", "fleet_from", "load_fleet", "read_files", "read_fleet", "read_source")

_END_FIELDS = ("cron", "for", "itl_ms", "min", "replicas", "until")
"""Fields of an objective or of an entry of a schedule at which a message may stand though the file lacks them."""
NO_NAME = "name is missing"
MODEL_PLACE = re.compile(r"\Amodels\[(\d+)\]")
EXTERNAL_PLACE = re.compile(r"\Aexternal\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a file says, as far as it can be read."""

    origin: str
    """The file's name, for messages."""
    fleet: Fleet | None = None
    """The whole fleet; None where there are problems."""
    problems: tuple[Problem, ...] = ()
    """Every mistake in the file."""
    is_later: bool = False
    """Whether all problems are of the kind "not yet"."""
    sound: Fleet | None = None
    """The part without mistakes: what else is wrong with it can be found out besides. None where there is none."""
    gateway: GatewaySpec | None = None
    """The gateway section; None where it has mistakes."""
    positions: tuple[int, ...] = ()
    """Places in the file's list of models that the models of ``sound`` have."""
    others: tuple[ReadableModel, ...] = ()
    """The fleet's other models, without the values that are wrong."""
    admins: tuple[AdminSpec, ...] = ()
    """The entries of gateway.admin that can be read."""
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Place of a value → file and line; empty where no file was read."""

    def whole(self) -> Fleet:
        """Return the fleet. Raises UserInputError with all problems; NotYetError where all of them are "not yet"."""
        if self.fleet is None:
            raise self.refusal()
        return self.fleet

    def placed_in_file(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return problems of ``sound`` with the places that its models have in the file."""

        def place(found: re.Match[str]) -> str:
            return f"models[{self.positions[int(found[1])]}]"

        return [replace(problem, where=MODEL_PLACE.sub(place, problem.where, count=1)) for problem in problems]

    def line_of(self, problem: Problem) -> tuple[str, int] | None:
        """Return file and line of a problem; None where it stands in no file."""
        return line_of(self.places, problem.where)

    def refusal(self, more: Sequence[Problem] = ()) -> UserInputError:
        """Return the error that names all problems. more: those that were found elsewhere."""
        problems = tuple(sorted(dict.fromkeys((*self.problems, *more)), key=_order))
        kind = NotYetError if self.is_later and not more else UserInputError
        return refusal(problems, self.origin, kind)


def _order(problem: Problem) -> tuple[int, int]:
    """Order problems as people read a file: the top, each model, the gateway."""
    if found := MODEL_PLACE.match(problem.where):
        return 1, int(found[1])
    return (2 if problem.where.startswith("gateway") else 0), 0


def load_fleet(text: str, origin: str, *, folder: str | None = None) -> Fleet:
    """Return the fleet that a file describes.

    Takes what ``read_fleet`` takes. Raises UserInputError with all problems found; NotYetError where all of them are
    of the kind "not yet".
    """
    return read_fleet(text, origin, folder=folder).whole()


def fleet_from(data: object, origin: str, *, folder: str) -> Fleet:
    """Return the fleet that plain values (of JSON, or of YAML) describe. Raises UserInputError as load_fleet does."""
    return read_values(data, origin, folder=folder).whole()


def read_fleet(text: str, origin: str, *, folder: str | None = None) -> Reading:
    """Read a file with all its mistakes.

    origin: the file's name, for messages; folder: absolute, where relative paths of the hints start (None: origin's)
    """
    return read_files([(origin, text)], folder=folder or os.path.dirname(os.path.abspath(origin)))


def read_files(files: Sequence[tuple[str, str]], *, folder: str, variables: Mapping[str, str] | None = None) -> Reading:
    """Read files, each with its name, as one fleet: each later one changes those before it.

    variables: what ``${NAME}`` in a value stands for; None: it stands for itself
    """
    origin = " + ".join(name for name, _ in files)
    parsed, problems = [], []
    for name, text in files:
        try:
            parsed.append((name, read_yaml(text, variables)))
        except UserInputError as error:
            problems += [replace(found, what=_of_file(found.what, name, files)) for found in error.problems]
    if problems:
        return Reading(origin=origin, problems=tuple(problems))
    try:
        whole = merged_files(parsed)
    except UserInputError as error:
        return Reading(origin=origin, problems=(Problem(where="", what=error.message, hint=error.hint),))
    reading = read_values(whole.value, origin, folder=folder, before=whole.problems)
    return replace(reading, places=whole.places)


def _of_file(what: str, name: str, files: Sequence[tuple[str, str]]) -> str:
    return what if len(files) == 1 else f"{name}: {what}"


def read_source(source: str, *, folder: str) -> Reading:
    """Read ``longboat up MODEL``: a fleet of one model, with defaults for everything else."""
    return read_values({"models": [source]}, source, folder=folder)


def read_values(data: object, origin: str, *, folder: str, before: Sequence[Problem] = ()) -> Reading:
    """Read plain values (of JSON, or of YAML) with all their mistakes; ``data`` is not changed.

    before: mistakes that were found on the way to the values; what else is wrong at their places follows from them
    """
    spelled = _Spelled()
    plain = _copy(data)
    whole = spelled.file(plain)
    if whole is None:
        return Reading(origin=origin, problems=tuple(before) or (_not_a_fleet(plain),))
    problems = take_later(whole)
    num_later = len(problems)
    spelled.models(whole)
    values = spelled.tuples(whole)
    assert isinstance(values, dict)
    between = spelled.as_written(_between_parts(values))
    problems += [*_same_names(whole, spelled.sugar), *between, *_order_problems(values)]
    own, others = _set_apart(values)
    fleet, details = _validated(values, folder)
    details = [detail for detail in details if not is_consequence(detail)]
    num_later += sum(detail["type"] == LATER for detail in details)
    found = (_placed(problem_of(_own_place(detail, own), spelled.sugar), others) for detail in details)
    problems = _without_consequences([*problems, *found])
    told = {problem.where for problem in before}
    problems = [*before, *(problem for problem in problems if problem.where not in told)]
    if fleet is not None and not problems:
        positions = tuple(range(len(fleet.models)))
        whole_gateway, admins = fleet.gateway, fleet.gateway.admin
        return Reading(
            origin=origin, fleet=fleet, sound=fleet, gateway=whole_gateway, positions=positions, admins=admins
        )
    gateway = _sound_gateway(values, problems)
    numbered, external = _numbered(values, "models", own), _numbered(values, "external", others)
    sound, positions = _sound_part(values, numbered, external, problems, gateway, folder)
    return Reading(
        origin=origin,
        problems=tuple(problems),
        is_later=num_later == len(problems),
        sound=sound,
        gateway=gateway,
        positions=positions,
        others=readable_models(numbered, problems, folder),
        admins=tuple(admin for _, admin in parts_of(values.get("gateway")).admin),
    )


def _validated(values: dict[str, object], folder: str) -> tuple[Fleet | None, list[ErrorDetails]]:
    try:
        return Fleet.model_validate(values, context={"folder": folder}), []
    except ValidationError as error:
        return None, list(without_branches(error.errors(include_url=False)))


def _numbered(values: dict[str, object], name: str, places: Sequence[int]) -> list[tuple[int, object]]:
    models = values.get(name)
    return list(zip(places, models, strict=True)) if isinstance(models, tuple) else []


def _sound_gateway(values: dict[str, object], problems: Sequence[Problem]) -> GatewaySpec | None:
    if any(problem.where.startswith("gateway") for problem in problems):
        return None
    try:
        return GatewaySpec.model_validate(values.get("gateway", {}))
    except ValidationError:
        return None


def _sound_part(
    values: dict[str, object],
    models: Sequence[tuple[int, object]],
    external: Sequence[tuple[int, object]],
    problems: Sequence[Problem],
    gateway: GatewaySpec | None,
    folder: str,
) -> tuple[Fleet | None, tuple[int, ...]]:
    """Return a fleet of the models that no problem names, behind ``gateway``, and their positions.

    models, external: the fleet's own and those of others, with their positions in the file
    """
    wrong = {int(found[1]) for problem in problems if (found := MODEL_PLACE.match(problem.where))}
    sound = [(index, model) for index, model in models if index not in wrong]
    part: dict[str, object] = {"models": tuple(model for _, model in sound), "gateway": gateway or GatewaySpec()}
    if gateway is not None:
        part["external"] = tuple(model for index, model in external if index not in wrong)
    if "name" in values and not any(problem.where == "name" for problem in problems):
        part["name"] = values["name"]
    fleet, _ = _validated(part, folder)
    return fleet, tuple(index for index, _ in sound) if fleet is not None else ()


def _not_a_fleet(data: Plain) -> Problem:
    hint = "the smallest fleet file is one line: builtin:tiny"
    if data is None:
        return Problem(where="", what="the file is empty", hint=hint)
    if isinstance(data, list):
        return Problem(where="", what="the file is a list", hint="write models: in front of the list")
    return Problem(where="", what=f"the file is {shown(data)}, not a fleet", hint=hint)


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
            what = f"{name!r} is already the name of models[{first}]"
            hint = f"give one of them another name: {_free_name(name, count)}"
            problems.append(Problem(where=show(sugar.get(path, path)), what=what, hint=hint))
    return problems


def _is_external(model: object) -> bool:
    engine = model.get("engine") if isinstance(model, dict) else None
    return isinstance(engine, dict) and engine.get("kind") == KIND


def _order_problems(values: dict[str, object]) -> list[Problem]:
    """Return a problem for each external model that stands before another one, and for a list of their own."""
    models = values.get("models")
    kinds = [_is_external(model) for model in models] if isinstance(models, tuple) else []
    last = max((index for index, is_external in enumerate(kinds) if not is_external), default=-1)
    problems = [
        Problem(
            where=f"models[{index}]",
            what="an external model comes before models of the fleet",
            hint=f"move it after models[{last}]",
        )
        for index in range(last)
        if kinds[index]
    ]
    if "external" in values:
        hint = "write under models: {name: NAME, engine: {kind: external, urls: [https://api.example.com/v1]}}"
        problems.append(Problem(where="external", what="there is no field 'external' here", hint=hint))
    return problems


def _set_apart(values: dict[str, object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Take the external models out of the list of models. Return the places in the file of the others, and theirs."""
    models = values.get("models")
    values.pop("external", None)
    if not isinstance(models, tuple):
        return (), ()
    places = tuple(index for index, model in enumerate(models) if _is_external(model))
    own = tuple(index for index, model in enumerate(models) if not _is_external(model))
    if places:
        values["external"] = tuple(models[index] for index in places)
        values["models"] = tuple(models[index] for index in own)
    return own, places


def _own_place(detail: ErrorDetails, own: Sequence[int]) -> ErrorDetails:
    """Return what is wrong with one of the fleet's own models at its place in the file."""
    match detail["loc"]:
        case ("models", int(index), *rest):
            return {**detail, "loc": ("models", own[index], *rest)}
        case _:
            return detail


def _placed(problem: Problem, others: Sequence[int]) -> Problem:
    where = EXTERNAL_PLACE.sub(lambda found: f"models[{others[int(found[1])]}]", problem.where)
    return replace(problem, where=where)


def _between_parts(values: dict[str, object]) -> list[Problem]:
    """Return what the gateway's parts and the models' names and tasks make wrong together."""
    given = values.get("models")
    models = given if isinstance(given, tuple) else ()
    names = [_name_meant(model) for model in models]
    known = None if "" in names or models is not given else [*names, *adapter_names(models)]
    parts = parts_of(values.get("gateway"))
    own = [None if _is_external(model) else model for model in models]
    return [
        *adapter_name_problems(models, names, parts.alias_names, parts.tenant_names),
        *gateway_problems(parts, known, external=_external_currencies(models)),
        *task_problems(own, names, parts),
    ]


def _external_currencies(models: tuple[object, ...]) -> dict[str, str]:
    """Return the external models, each with the currency of its price."""
    found = ((model, model["engine"]) for model in models if isinstance(model, dict) and _is_external(model))
    return {_name_meant(model): currency_of(engine.get("price")) for model, engine in found}


def _name_meant(model: object) -> str:
    """Return the name that a model has, or will have when its source is mended; empty where neither can be known."""
    if not isinstance(model, dict):
        return ""
    name, source = model.get("name"), model.get("source")
    return name if isinstance(name, str) else name_from_source(source) if isinstance(source, str) else ""


def _free_name(name: str, taken: Counter[str]) -> str:
    return next(free for number in range(2, len(taken) + 3) if (free := f"{name}-{number}") not in taken)


def _without_consequences(problems: list[Problem]) -> list[Problem]:
    """Drop the missing name of a model whose source cannot be used: the source is the mistake."""
    places = {problem.where for problem in problems if problem.what != NO_NAME}

    def is_one(problem: Problem) -> bool:
        return problem.what == NO_NAME and bool(places & {problem.where, problem.where.removesuffix("name") + "source"})

    return [problem for problem in problems if not is_one(problem)]


@dataclass(slots=True)
class _Spelled:
    """The file with its short forms spelled out. sugar: path in the long form → path as written."""

    sugar: dict[Path, Path] = field(default_factory=dict)

    def file(self, data: Plain) -> dict[str, Plain] | None:
        """Return the whole file as a mapping; None where it is not one."""
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
        self.adapters(model, path)
        self.replicas(model, path)
        source = model.get("source")
        usable = isinstance(source, str) and check_source(source, "/") is None
        if "name" not in model and usable and (name := name_from_source(str(source))):
            model["name"] = name
            self.sugar.setdefault((*path, "name"), (*path, "source"))
        return model

    def replicas(self, model: dict[str, Plain], path: Path) -> None:
        """Spell out objectives and schedules of one entry."""
        ruled = model.get("replicas")
        for name in ("slo", "schedule") if isinstance(ruled, dict) else ():
            assert isinstance(ruled, dict)
            if isinstance(entry := ruled.get(name), dict):
                at = (*path, "replicas", name)
                self.sugar |= {(*at, 0, key): (*at, key) for key in (*entry, *_END_FIELDS)}
                self.sugar[(*at, 0)] = at
                ruled[name] = [entry]

    def adapters(self, model: dict[str, Plain], path: Path) -> None:
        """Spell out a list of adapters, and those that are just a folder."""
        given, at = model.get("adapters"), (*path, "adapters")
        entries: Plain = given.get("entries") if isinstance(given, dict) else given
        if not isinstance(entries, list):
            return
        is_short = isinstance(given, list)
        for index, entry in enumerate(entries):
            written = (*at, index) if is_short else (*at, "entries", index)
            place: Path = (*at, "entries", index)
            if isinstance(entry, str):
                self.sugar[(*place, "source")] = written
                entry = entries[index] = {"source": entry}
            elif is_short and isinstance(entry, dict):
                self.sugar |= {(*place, key): (*written, key) for key in ("name", "source", "revision", "tenants")}
            source = entry.get("source") if isinstance(entry, dict) and "name" not in entry else None
            if isinstance(entry, dict) and isinstance(source, str) and (name := name_from_source(source)):
                entry["name"] = name
                self.sugar[(*place, "name")] = self.sugar.get((*place, "source"), (*place, "source"))
        if is_short:
            model["adapters"] = {"entries": entries}

    def as_written(self, problems: Iterable[Problem]) -> list[Problem]:
        """Return problems of the long form at their places in the file."""
        known = {show(path): show(written) for path, written in self.sugar.items() if path}
        return [replace(problem, where=known.get(problem.where, problem.where)) for problem in problems]

    def tuples(self, value: Plain) -> object:
        """Return the values with tuples for lists, as the frozen types want them."""
        if isinstance(value, list):
            return tuple(self.tuples(item) for item in value)
        if isinstance(value, dict):
            return {key: self.tuples(item) for key, item in value.items()}
        return value


def _copy(value: object) -> Plain:
    """Copy plain values; what is not plain becomes text, which only text fields take."""
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {str(key).encode(errors="backslashreplace").decode(): _copy(item) for key, item in value.items()}
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
