"""JSON Schema of the fleet file, short forms included, for editors."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from longboat.spec.types.fleet import Fleet
from longboat.spec.types.section import Section

__all__ = ("fleet_schema",)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SOURCE_TEXT = "builtin:NAME, an absolute folder as the nodes see it, hf:ORGANISATION/NAME, or s3://BUCKET/PREFIX"
SOURCE_PATTERN = r"^(builtin:[a-z0-9][a-z0-9.-]*|hf:[^/\s]+/[^/\s]+|(s3|gs|az|https?|file)://\S+|/.+)$"
Schema = dict[str, Any]


def fleet_schema() -> Schema:
    """Return the schema: a fleet, or as a whole file just one model's source."""
    whole = Fleet.model_json_schema(by_alias=True)
    definitions: Schema = whole.pop("$defs")
    source = {"type": "string", "pattern": SOURCE_PATTERN, "description": SOURCE_TEXT}
    model = definitions["ModelSpec"]
    model["required"] = ["source"]
    model["properties"]["source"] = source
    kinds = definitions["EngineSpec"]["properties"]["kind"]["enum"]
    model["properties"]["engine"] = _short_or_long(
        {"type": "string", "enum": kinds}, "EngineSpec", "The engine, or its kind."
    )
    whole["properties"]["models"]["items"] = {
        "anyOf": [source, {"$ref": "#/$defs/ModelSpec"}, {"$ref": "#/$defs/ExternalModelSpec"}],
        "description": "A model, or just its source.",
    }
    whole["properties"]["models"]["minItems"] = 1
    del whole["properties"]["external"]
    definitions["Fleet"] = _tidy(whole)
    for kind in _kinds(Section):
        if kind.__name__ in definitions:
            _describe(kind, definitions[kind.__name__]["properties"])
    return {
        "$schema": DIALECT,
        "title": "Longboat fleet file",
        "anyOf": [{"$ref": "#/$defs/Fleet"}, source],
        "$defs": {name: _tidy(definition) for name, definition in definitions.items()},
    }


def _kinds(kind: type[Section]) -> Iterator[type[Section]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _kinds(sub)


def _describe(kind: type[Section], properties: Schema) -> None:
    """Add the lines that stand below fields in the source. Pydantic would read them whenever the types are loaded."""
    texts: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        texts |= _lines_below_fields(parent.__module__).get(parent.__name__, {}) if issubclass(parent, Section) else {}
    for name, field in kind.model_fields.items():
        if name in texts and (key := field.alias or name) in properties:
            properties[key].setdefault("description", texts[name])


@functools.cache
def _lines_below_fields(module: str) -> dict[str, dict[str, str]]:
    """Return the strings that follow annotated names in the bodies of a module's classes: class → name → text."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {kind.name: dict(_described(kind.body)) for kind in tree.body if isinstance(kind, ast.ClassDef)}


def _described(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(below.value))


def _short_or_long(short: Schema, name: str, description: str) -> Schema:
    return {"anyOf": [short, {"$ref": f"#/$defs/{name}"}], "description": description}


def _tidy(definition: Schema) -> Schema:
    """Without pydantic's generated titles, and without defaults that are whole sections."""
    definition.pop("title", None)
    for field in definition["properties"].values():
        field.pop("title", None)
        if isinstance(field.get("default"), dict):
            field.pop("default")
    return definition
