"""The file of a gateway by itself: engines that someone else started, and the fleet file's gateway section."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails

from longboat.core.errors import Problem, UserInputError
from longboat.core.states import Endpoint
from longboat.spec.checks.gateway_checks import gateway_problems
from longboat.spec.checks.mistakes import is_consequence, problem_of
from longboat.spec.checks.refusal import refusal
from longboat.spec.checks.wording import near, shown
from longboat.spec.text.location import show
from longboat.spec.text.yaml_text import Plain, parse_yaml
from longboat.spec.types.external import ExternalModelSpec
from longboat.spec.types.gateway import GatewaySpec
from longboat.spec.types.gateway_parts import currency_of, parts_of
from longboat.spec.types.section import Section, mistake

__all__ = ("AloneSpec", "HealthSpec", "UpstreamSpec", "alone_from", "endpoints_of", "parse_alone")

MAX_UPSTREAMS = 1000

MODEL_NAME = re.compile(r"[!-~]{1,128}")
REPLICA_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
HEALTH_PATH = re.compile(r"/[!-~]{0,200}")


def _model(value: str) -> str:
    if not MODEL_NAME.fullmatch(value):
        raise mistake(f"{value!r} is not 1 to 128 printable characters without spaces", "write it as the engine does")
    return value


def _replica(value: str) -> str:
    if not REPLICA_NAME.fullmatch(value):
        raise mistake(f"{value!r} is not 1 to 63 of letters, digits, '.', '_', '-'", "write r0, or leave it out")
    return value


def _url(value: str) -> str:
    """http://HOST:PORT, without what every engine's API begins with."""
    try:
        parts = urlsplit(value)
        usable = parts.scheme == "http" and parts.hostname and parts.port and not (parts.query or parts.fragment)
    except ValueError:
        raise mistake(f"{value!r} is not http://HOST:PORT", "write it like http://127.0.0.1:8001") from None
    if parts.username or parts.password:
        raise mistake("the address holds a password", "name the variable that holds the key: api_key_env: ENGINE_KEY")
    if not usable or not value.isascii() or not value.isprintable() or " " in value:
        raise mistake(f"{value!r} is not http://HOST:PORT", _url_hint(value, parts))
    return value.rstrip("/").removesuffix("/v1")


def _url_hint(value: str, parts: SplitResult) -> str:
    if parts.scheme == "https":
        return "engines are spoken to in plain HTTP; put a TLS proxy beside the engine"
    if parts.scheme == "http" and parts.hostname:
        return f"write the port as well: http://{parts.hostname}:8000"
    if re.fullmatch(r"[A-Za-z0-9.-]+:\d+", value):
        return f"write http://{value}"
    return "write it like http://127.0.0.1:8001"


def _variable(value: str) -> str:
    if not VARIABLE.fullmatch(value):
        raise mistake(f"{value!r} is not the name of an environment variable", "write the variable's name, not the key")
    return value


def _health_path(value: str) -> str:
    if not HEALTH_PATH.fullmatch(value):
        raise mistake(f"{value!r} is not a path", "write it like /health")
    return value


class UpstreamSpec(Section):
    """An engine that someone else started. Several of one model are its replicas."""

    model: Annotated[str, AfterValidator(_model)]
    """The name that clients and the engine call the model."""
    url: Annotated[str, AfterValidator(_url)]
    """http://HOST:PORT of the engine."""
    replica: Annotated[str, AfterValidator(_replica)] | None = None
    """Name of this replica; null is r0, r1, ... in the order of the file."""
    api_key_env: Annotated[str, AfterValidator(_variable)] | None = None
    """Environment variable with the key that the engine asks for."""
    capacity: int | None = Field(default=None, ge=1, le=1_000_000)
    """Requests that the engine runs at once; what is more waits in the gateway. null sends it everything."""


class HealthSpec(Section):
    """How engines are looked after."""

    path: Annotated[str, AfterValidator(_health_path)] = "/health"
    """What is asked for; every answer below 500 means that the engine is there."""
    every_s: float = Field(default=2.0, ge=0.1, le=3600)
    """Seconds between two looks."""
    timeout_s: float = Field(default=5.0, ge=0.1, le=3600)
    """Seconds that an answer may take; after the third late one in a row the engine counts as down."""


class AloneSpec(Section):
    """A gateway that runs by itself."""

    upstreams: tuple[UpstreamSpec, ...] = Field(max_length=MAX_UPSTREAMS)
    """The engines."""
    models: tuple[ExternalModelSpec, ...] = Field(default=(), max_length=MAX_UPSTREAMS)
    """Models that other people serve, as in the fleet file."""
    gateway: GatewaySpec = GatewaySpec()
    """As in the fleet file."""
    health: HealthSpec = HealthSpec()
    """How engines are looked after."""

    @property
    def models_of_engines(self) -> tuple[str, ...]:
        """Names that the engines serve, each once, in the order of the file."""
        return tuple(dict.fromkeys(upstream.model for upstream in self.upstreams))


def parse_alone(text: str, origin: str) -> dict[str, Plain]:
    """Return the plain values of a file. Raises UserInputError where they are not YAML, or not a mapping."""
    try:
        data = parse_yaml(text)
    except UserInputError as error:
        raise refusal(list(error.problems), origin) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        hint = "write upstreams: [{model: NAME, url: http://HOST:PORT}]"
        raise refusal([Problem(where="", what=f"the file is {shown(data)}, not a gateway's file", hint=hint)], origin)
    return data


def alone_from(
    data: Mapping[str, Plain], origin: str, *, written: Mapping[str, str] | None = None, more: Sequence[Problem] = ()
) -> AloneSpec:
    """Return what plain values describe.

    origin: the file's name, for messages; written: place in the values → what the user wrote to put it there
    more: problems that were found on the way to the values
    Raises UserInputError with all problems found.
    """
    values = _tuples({name: value for name, value in data.items() if name in AloneSpec.model_fields})
    assert isinstance(values, dict)
    problems = [*more, *(_unknown(name) for name in data if name not in AloneSpec.model_fields)]
    try:
        spec = AloneSpec.model_validate(values)
    except ValidationError as error:
        problems += [_problem_of(item) for item in error.errors(include_url=False) if not is_consequence(item)]
    else:
        if spec.upstreams or not problems:
            problems += _upstream_problems(spec)
    external = _external_currencies(values.get("models"))
    problems += gateway_problems(
        parts_of(values.get("gateway")), _model_names(values.get("upstreams"), external), external=external
    )
    if problems:
        raise refusal([_as_written(problem, written or {}) for problem in problems], origin)
    return spec


def _external_currencies(models: object) -> dict[str, str]:
    """Return the external models whose name can be read, each with the currency of its price."""
    items = [item for item in models if isinstance(item, dict)] if isinstance(models, tuple) else []
    named = [(item.get("name"), item.get("engine")) for item in items]
    priced = ((name, engine.get("price") if isinstance(engine, dict) else None) for name, engine in named)
    return {name: currency_of(price) for name, price in priced if isinstance(name, str)}


def _model_names(upstreams: object, external: Collection[str]) -> list[str] | None:
    """Return the names that are served; None where one of them cannot be read, or there is none."""
    items = upstreams if isinstance(upstreams, tuple) else ()
    names = [item.get("model") if isinstance(item, dict) else None for item in items]
    known = [name for name in names if isinstance(name, str)]
    return [*known, *external] if (known or external) and len(known) == len(names) else None


def endpoints_of(upstreams: Sequence[UpstreamSpec], keys: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Endpoints that are not ready yet. keys: environment variable → the engine's key."""
    named = Counter[str]()
    made = []
    for upstream in upstreams:
        name = upstream.replica or f"r{named[upstream.model]}"
        named[upstream.model] += 1
        key = keys[upstream.api_key_env] if upstream.api_key_env else ""
        made.append(
            Endpoint(
                model=upstream.model,
                replica=name,
                generation=1,
                url=upstream.url,
                api_key=key,
                ready=False,
                capacity=upstream.capacity,
            )
        )
    return tuple(made)


def _problem_of(detail: ErrorDetails) -> Problem:
    """Return one Problem; the sections that the fleet file does not have name their own fields."""
    path = detail["loc"]
    if path[0] == "models":
        return _external_problem(detail)
    sections: dict[str, type[Section]] = {"upstreams": UpstreamSpec, "health": HealthSpec}
    owner = sections.get(str(path[0]))
    if owner is None or detail["type"] != "extra_forbidden":
        return problem_of(detail, {})
    known, word = list(owner.model_fields), str(path[-1])
    hint = f"write {close}" if (close := near(word, known)) else f"known here: {', '.join(known)}"
    return Problem(where=show(path), what=f"there is no field {word!r} here", hint=hint)


def _external_problem(detail: ErrorDetails) -> Problem:
    """Return what is wrong with an external model, as the fleet file's reader says it."""
    path = detail["loc"]
    if path[-2:] == ("engine", "kind") or path[2:] in ((), ("engine",), ("source",)):
        hint = "write upstreams: for engines that run already, or use longboat up to start models"
        what = "a gateway by itself starts no models: only external ones may stand here"
        return Problem(where=show(path), what=what, hint=hint)
    found = problem_of({**detail, "loc": ("external", *path[1:])}, {})
    return replace(found, where=found.where.replace("external", "models", 1))


def _unknown(name: str) -> Problem:
    known = list(AloneSpec.model_fields)
    hint = f"write {close}" if (close := near(name, known)) else f"known here: {', '.join(known)}"
    if name in GatewaySpec.model_fields:
        hint = f"{name} stands under gateway"
    return Problem(where=name, what=f"there is no field {name!r} here", hint=hint)


def _double_models(spec: AloneSpec) -> list[Problem]:
    names = [model.name for model in spec.models]
    return [
        Problem(
            where=show(("models", index, "name")),
            what=f"{name!r} is already the name of another model",
            hint="give one of them another name",
        )
        for index, name in enumerate(names)
        if name in names[:index] or name in spec.models_of_engines
    ]


def _upstream_problems(spec: AloneSpec) -> list[Problem]:
    if problems := _double_models(spec):
        return problems
    if not spec.upstreams and not spec.models:
        hint = "write --upstream MODEL=http://HOST:PORT, or upstreams: in a file for --config"
        return [Problem(where="upstreams", what="there is no upstream", hint=hint)]
    endpoints = endpoints_of([u.model_copy(update={"api_key_env": None}) for u in spec.upstreams], {})
    addresses = [(e.model, e.url) for e in endpoints]
    names = [(e.model, e.replica) for e in endpoints]
    problems = []
    for index, endpoint in enumerate(endpoints):
        if (first := addresses.index(addresses[index])) != index:
            what = f"{endpoint.url} is already upstreams[{first}] of {endpoint.model}"
            where = show(("upstreams", index, "url"))
            problems.append(Problem(where=where, what=what, hint="keep one of them"))
        elif (first := names.index(names[index])) != index:
            what = f"{endpoint.replica!r} is already the name of upstreams[{first}]"
            where = show(("upstreams", index, "replica"))
            problems.append(Problem(where=where, what=what, hint="give one of them another name, or none"))
    return problems


def _as_written(problem: Problem, written: Mapping[str, str]) -> Problem:
    place = problem.where
    while place:
        if place in written:
            return Problem(where=written[place], what=problem.what, hint=problem.hint)
        place = place.rpartition(".")[0]
    return problem


def _tuples(value: Plain) -> object:
    """Return the values with tuples for lists, as the frozen types want them."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
