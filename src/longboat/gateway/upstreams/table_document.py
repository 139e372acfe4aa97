"""The JSON document by which an endpoint table is pushed to a gateway."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import Any

import orjson

from longboat.core.errors import UserInputError
from longboat.core.states import Endpoint, EndpointTable, ResumeLevel

__all__ = ("decode_table", "encode_table")

_ENDPOINT_KINDS: dict[str, type | tuple[type, ...]] = {
    "model": str,
    "replica": str,
    "generation": int,
    "url": str,
    "api_key": str,
    "ready": bool,
    "capacity": (int, NoneType),
    "engine_capacity": (int, NoneType),
    "resume": str,
    "revision": str,
    "beats": str,
    "moving": bool,
    "adapters": dict,
    "adapters_held": int,
}
_LEVELS = frozenset(level.value for level in ResumeLevel)
_REQUIRED = ("model", "replica", "generation", "url")


def encode_table(epoch: str, table: EndpointTable) -> bytes:
    """Return the document that the control socket takes."""
    return orjson.dumps({"epoch": epoch, **dataclasses.asdict(table)})


def decode_table(document: bytes) -> tuple[str, EndpointTable]:
    """Return epoch and table.

    :raises UserInputError: the document is not what :func:`encode_table` writes
    """
    try:
        values = orjson.loads(document)
        epoch, version, models = values["epoch"], values["version"], values["models"]
        endpoints = tuple(_endpoint(item) for item in values["endpoints"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise UserInputError(
            f"the table cannot be read: {error!r}", hint="send epoch, version, models, endpoints"
        ) from error
    if not (isinstance(epoch, str) and isinstance(version, int) and _all_strings(models)):
        raise UserInputError("epoch, version or models has the wrong type", hint="text, whole number, list of texts")
    partial = values.get("partial") is True
    return epoch, EndpointTable(version=version, models=tuple(models), endpoints=endpoints, partial=partial)


def _endpoint(item: Any) -> Endpoint:
    if not isinstance(item, dict):
        raise TypeError("an endpoint is not an object")
    for name, kind in _ENDPOINT_KINDS.items():
        if name in item and not isinstance(item[name], kind):
            raise TypeError(f"{name} is not {getattr(kind, '__name__', 'a number or null')}")
    for name in ("api_key", "url", "replica"):  # they become parts of header lines
        if not (text := item.get(name, "")).isascii() or not text.isprintable():
            raise TypeError(f"{name} is not plain printable text")
    for word in (word for pair in item.get("adapters", {}).items() for word in pair):  # they too
        if not isinstance(word, str) or not word.isascii() or not word.isprintable() or " " in word:
            raise TypeError("adapters is not names and revisions")
    missing = [name for name in _REQUIRED if name not in item]
    if missing:
        raise KeyError(missing[0])
    values = {name: item[name] for name in _ENDPOINT_KINDS if name in item}
    if "resume" in values:
        values["resume"] = _level(values["resume"])
    return Endpoint(**values)


def _level(name: str) -> ResumeLevel:
    """Return the level of this name. One that only a newer sender knows is NONE, so that no response is corrupted."""
    return ResumeLevel(name) if name in _LEVELS else ResumeLevel.NONE


def _all_strings(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, str) for v in values)
