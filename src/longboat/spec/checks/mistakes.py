"""pydantic's errors as Problems: path as written, the value, the limit, and the nearest thing that works."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from longboat.core.errors import Problem
from longboat.spec.text.location import Path, section_of, show
from longboat.spec.types import fleet, gateway
from longboat.spec.types.section import LATER, MISTAKE

__all__ = ("near", "problem_of", "shown")

SECTIONS: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): fleet.Fleet,
    ("models",): fleet.ModelSpec,
    ("models", "engine"): fleet.EngineSpec,
    ("models", "engine", "options"): fleet.OptionsSpec,
    ("models", "split"): fleet.SplitSpec,
    ("models", "load"): fleet.LoadSpec,
    ("models", "resources"): fleet.ResourcesSpec,
    ("models", "placement"): fleet.PlacementSpec,
    ("models", "update"): fleet.UpdateSpec,
    ("gateway",): gateway.GatewaySpec,
    ("gateway", "tls"): gateway.TlsSpec,
    ("gateway", "tenants"): gateway.TenantSpec,
    ("gateway", "admin"): gateway.AdminSpec,
    ("gateway", "cors"): gateway.CorsSpec,
    ("gateway", "aliases"): gateway.AliasSpec,
    ("gateway", "aliases", "pools"): gateway.PoolSpec,
    ("gateway", "rules"): gateway.RuleSpec,
    ("gateway", "queue"): gateway.QueueSpec,
    ("gateway", "resume"): gateway.ResumeSpec,
    ("gateway", "logs"): gateway.LogsSpec,
    ("gateway", "tracing"): gateway.TracingSpec,
    ("gateway", "redis"): gateway.RedisSpec,
}

# Names from other tools' files and command lines.
SYNONYMS: Mapping[str, str] = {
    "api_version": "apiVersion",
    "environment_path": "engine.environment",
    "extra_args": "engine.args",
    "gpu": "resources.gpus",
    "instances": "replicas",
    "max_context": "context",
    "max_model_len": "context",
    "max_tokens": "context",
    "model": "source",
    "model_path": "source",
    "node_selector": "placement.labels",
    "num_replicas": "replicas",
    "parallel": "split",
    "path": "source",
    "pipeline_parallel_size": "split.pipeline",
    "pp": "split.pipeline",
    "tensor_parallel_size": "split.tensor",
    "tp": "split.tensor",
    "concurrency": "load.users",
    "users": "load.users",
    "prompt": "load.prompt_tokens",
    "output": "load.output_tokens",
    "cert": "gateway.tls.certificate",
    "rate_limit": "gateway.tenants.requests_per_minute",
    "rpm": "gateway.tenants.requests_per_minute",
    "rpm_limit": "gateway.tenants.requests_per_minute",
    "tpm": "gateway.tenants.tokens_per_minute",
    "tpm_limit": "gateway.tenants.tokens_per_minute",
    "max_parallel_requests": "gateway.tenants.concurrent_requests",
    "workers": "gateway.processes",
}

# What is done otherwise.
ELSEWHERE: Mapping[str, str] = {
    "api_key": "write auth: keys under gateway; longboat keys create --tenant NAME makes a key",
    "api_keys": "write auth: keys under gateway; longboat keys create --tenant NAME makes a key",
    "keys": "write auth: keys under gateway; longboat keys create --tenant NAME makes a key",
    "canary": "write an alias with pools under gateway: aliases: [{name: chat, pools: [{model: a, weight: 9}, ...]}]",
    "password": "write the whole URL into a file: url_file: /etc/longboat/redis-url",
    "quotas": "write them for each tenant under gateway: tenants: [{name: a, requests_per_minute: 60}]",
}

EXPECTED: Mapping[str, tuple[str, str]] = {
    "int_type": ("a whole number", "write a number without quotes"),
    "int_from_float": ("a whole number", "write a number without a decimal point"),
    "float_type": ("a number", "write a number without quotes"),
    "string_type": ("text", "put it in quotes"),
    "bool_type": ("true or false", "write true or false"),
    "tuple_type": ("a list", "write it in brackets: [...]"),
    "dict_type": ("a mapping", "write it as key: value lines"),
    "model_type": ("a mapping", "write it as key: value lines"),
}

BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than_equal": ("less than the smallest allowed", "ge"),
    "less_than_equal": ("more than the limit", "le"),
}


def shown(value: object) -> str:
    """A value as the user would recognise it, cut to a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def near(word: str, known: list[str]) -> str:
    """The known word that was most likely meant; ``""`` where none is close."""
    close = difflib.get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    return next((name for name in known if close and name.lower() == close[0]), "")


def fields_of(section: tuple[str, ...]) -> list[str]:
    """Names that may stand in a section, as written in the file."""
    model = SECTIONS.get(section)
    return [info.alias or name for name, info in model.model_fields.items()] if model else []


def problem_of(error: ErrorDetails, sugar: Mapping[Path, Path]) -> Problem:
    """One Problem. ``sugar``: where a value stands that was written in short form."""
    path, kind, value = error["loc"], error["type"], error["input"]
    context: dict[str, Any] = error.get("ctx", {})
    where = show(_as_written(path, sugar))
    if kind in (MISTAKE, LATER):
        return Problem(where=where, what=context["what"], hint=context["hint"])
    if kind == "extra_forbidden":
        return _unknown_field(path, where)
    if kind == "missing":
        return _missing(path, where)
    if kind == "literal_error":
        return _not_one_of(value, path, where, context["expected"])
    if kind in BOUNDS:
        text, key = BOUNDS[kind]
        return Problem(where=where, what=f"{shown(value)} is {text}, {context[key]:g}", hint=f"write {context[key]:g}")
    if kind in EXPECTED:
        return _wrong_type(kind, value, path, where)
    return _other(error, where, context)


def _as_written(path: Path, sugar: Mapping[Path, Path]) -> Path:
    for length in range(len(path), 0, -1):
        if (written := sugar.get(path[:length])) is not None:
            return written
    return path


def _unknown_field(path: Path, where: str) -> Problem:
    section, word = section_of(path[:-1]), str(path[-1])
    known = fields_of(section)
    return Problem(where=where, what=f"there is no field {word!r} here", hint=_did_you_mean(section, word, known))


def _did_you_mean(section: tuple[str, ...], word: str, known: list[str]) -> str:
    if word in ELSEWHERE and word not in known:
        return ELSEWHERE[word]
    meant = SYNONYMS.get(word, "")
    if meant.partition(".")[0] in known:
        return f"write {meant}"
    if meant.rpartition(".")[0] in (".".join(section[1:]), ".".join(section)) and meant.rpartition(".")[2] in known:
        return f"write {meant.rpartition('.')[2]}"
    if close := near(word, known):
        return f"write {close}"
    for other in SECTIONS:
        if other != section and word in fields_of(other):
            owner = ".".join(other).replace("models", "models[...]") or "the top of the file"
            return f"{word} stands under {owner}"
    return f"known here: {', '.join(known)}"


def _missing(path: Path, where: str) -> Problem:
    field = str(path[-1])
    hints = {
        "models": "write models: [builtin:tiny]",
        "certificate": "write certificate: /etc/longboat/tls.crt, the PEM file that belongs to the key",
        "key": "write key: /etc/longboat/tls.key, the PEM file that belongs to the certificate",
        "to": "write to: NAME, the model that gets these requests",
        "source": "write source: builtin:tiny, /a/folder or hf:org/name",
        "name": "give the model a name: the source has no letters that could stand in a URL",
    }
    return Problem(where=where, what=f"{field} is missing", hint=hints.get(field, f"write {field}"))


def _not_one_of(value: object, path: Path, where: str, expected: str) -> Problem:
    choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
    close = near(value, choices) if isinstance(value, str) else ""
    if path == ("apiVersion",):
        hint = f"write apiVersion: {fleet.API_VERSION}, or leave it out"
    else:
        hint = f"write {close}" if close else f"write one of: {', '.join(choices)}"
    return Problem(where=where, what=f"{shown(value)} is not one of: {', '.join(choices)}", hint=hint)


def _wrong_type(kind: str, value: object, path: Path, where: str) -> Problem:
    expected, hint = EXPECTED[kind]
    if kind == "string_type" and isinstance(value, bool | int | float):
        hint = f'put it in quotes: "{shown(value)}"'
    elif kind in ("int_type", "float_type") and isinstance(value, str) and value.strip().isdecimal():
        hint = f"write {int(value)} without quotes"
    elif kind in ("int_type", "int_from_float") and isinstance(value, float) and math.isfinite(value):
        hint = f"write {round(value)}"
    elif path == ("models",) and isinstance(value, str):
        hint = f"write models: [{value}]"
    elif section_of(path) == ("models",) and len(path) == 2:
        expected, hint = "a model", "write its source (builtin:tiny), or a mapping with source: in it"
    elif path == ("models",):
        hint = "write models: [builtin:tiny], or a list of mappings that start with '- source: ...'"
    elif value is None:
        hint = f"{hint}, or leave the field out"
    elif path[-1] in ("split", "replicas", "tensor", "pipeline") and isinstance(value, str):
        hint = "write split: {tensor: 2}, or auto" if path[-1] == "split" else "write a number, or auto"
    return Problem(where=where, what=f"{shown(value)} is not {expected}", hint=hint)


def _other(error: ErrorDetails, where: str, context: Mapping[str, Any]) -> Problem:
    if error["type"] in ("too_long", "too_short"):
        limit = context.get("max_length", context.get("min_length"))
        few = error["type"] == "too_short"
        what = f"{context['actual_length']} entries, {'at least' if few else 'at most'} {limit} are allowed"
        return Problem(where=where, what=what, hint="write models: [builtin:tiny]" if few else f"write at most {limit}")
    return Problem(
        where=where, what=f"{shown(error['input'])}: {error['msg']}", hint="see docs/reference/fleet-file.md"
    )
