"""The JSON document by which an endpoint table, or a change of it, is pushed to a gateway."""

from __future__ import annotations

from types import NoneType
from typing import Any

import orjson

from longboat.core.errors import UserInputError
from longboat.core.states import Asleep, Endpoint, EndpointTable, ResumeLevel
from longboat.core.table_changes import TableUpdate

__all__ = ("decode_update", "encode_update")

_ENDPOINT_KINDS: dict[str, type | tuple[type, ...]] = {
    "model": str,
    "replica": str,
    "generation": int,
    "url": str,
    "api_key": str,
    "ready": bool,
    "unwell": bool,
    "capacity": (int, NoneType),
    "engine_capacity": (int, NoneType),
    "resume": str,
    "revision": str,
    "beats": str,
    "relay": str,
    "moving": bool,
    "adapters": dict,
    "adapters_held": int,
    "context_tokens": int,
}
_LEVELS = frozenset(level.value for level in ResumeLevel)
_REQUIRED = ("model", "replica", "generation", "url")


def encode_update(update: TableUpdate) -> bytes:
    """Return the document of a whole table, or of a change of one."""
    table = update.table
    steps = {"base": update.base, "slots": update.slots, "gone": update.gone} if not update.is_whole else {}
    return orjson.dumps(
        {
            "epoch": update.epoch,
            "number": update.number,
            **steps,
            "version": table.version,
            "models": table.models,
            "endpoints": table.endpoints,
            "partial": table.partial,
            "asleep": table.asleep,
            "scaling": table.scaling,
            "relays": table.relays,
        },
        default=dict,  # other mappings
    )


def decode_update(document: bytes) -> TableUpdate:
    """Read a whole table, or a change of one.

    :raises UserInputError: the document is not what :func:`encode_update` writes
    """
    epoch, table, values = _read(document)
    number, base, slots, gone = (values.get(name, 0) for name in ("number", "base", "slots", "gone"))
    slots, gone = slots or {}, gone or []
    is_read = isinstance(number, int) and isinstance(base, int) and isinstance(slots, dict) and _all_strings(gone)
    if not is_read or any(value is not None and not isinstance(value, int) for value in slots.values()):
        what = "number, base, slots or gone has the wrong type"
        raise UserInputError(what, hint="whole numbers, a map of keys to whole numbers, a list of keys")
    return TableUpdate(epoch=epoch, number=number, base=base, table=table, slots=slots, gone=tuple(gone))


def _read(document: bytes) -> tuple[str, EndpointTable, dict[str, Any]]:
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
    table = EndpointTable(
        version=version,
        models=tuple(models),
        endpoints=endpoints,
        partial=values.get("partial") is True,
        asleep=_asleep(values.get("asleep", {})),
        scaling=_scaling(values.get("scaling", {})),
        relays=_relays(values.get("relays", {})),
    )
    return epoch, table, values


def _relays(values: Any) -> dict[str, str]:
    """Read addresses and keys of relays. What is not a text is left out: those endpoints are heard directly."""
    pairs = values.items() if isinstance(values, dict) else ()
    return {where: key for where, key in pairs if isinstance(key, str)}


def _asleep(values: Any) -> dict[str, Asleep]:
    """Read how models sleep. Raise UserInputError where that is not what ``encode_update`` writes."""
    try:
        return {model: _one_asleep(entry) for model, entry in values.items()}
    except (AttributeError, TypeError, KeyError) as error:
        raise UserInputError(
            f"asleep cannot be read: {error!r}", hint="for each model, send paused, cold_start_s, ordered_s"
        ) from error


def _scaling(values: Any) -> dict[str, dict[str, float]]:
    """Read the figures of models. What is not a number is left out: they are for metrics only."""
    if not isinstance(values, dict):
        return {}
    rows = {str(model): row for model, row in values.items() if isinstance(row, dict)}
    return {m: {str(k): float(v) for k, v in row.items() if isinstance(v, int | float)} for m, row in rows.items()}


def _one_asleep(entry: Any) -> Asleep:
    seconds = {name: entry.get(name) for name in ("cold_start_s", "ordered_s")}
    if any(value is not None and not isinstance(value, int | float) for value in seconds.values()):
        raise TypeError("cold_start_s or ordered_s is not a number")
    return Asleep(paused=entry.get("paused") is True, **seconds)


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
