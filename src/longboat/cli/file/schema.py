"""``longboat schema``: the fleet file's JSON Schema on standard output, for editors."""

from __future__ import annotations

import json
import sys

__all__ = ("print_schema", "schema_text")


def schema_text() -> str:
    """Return the JSON Schema as indented text, with a newline at the end."""
    from longboat.spec.files.schema import fleet_schema

    return json.dumps(fleet_schema(), indent=2) + "\n"


def print_schema() -> None:
    """Write the schema to standard output: ``longboat schema > fleet.schema.json``."""
    sys.stdout.write(schema_text())
