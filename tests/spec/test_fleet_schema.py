"""The JSON Schema: editors accept what the loader accepts, and mark what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from longboat.cli.file.schema import schema_text
from longboat.spec.files.load import load_fleet

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load_and_follow_the_schema(path: Path) -> None:
    text = path.read_text()
    load_fleet(text, str(path))
    jsonschema.validate(yaml.safe_load(text), json.loads(schema_text()))


@pytest.mark.parametrize(
    "data",
    [
        {"models": []},
        {"models": ["tiny"]},
        {"models": [{"name": "a"}]},
        {"models": [{"source": "builtin:tiny", "replicas": "2"}]},
        {"models": [{"source": "builtin:tiny", "engine": "ollama"}]},
        {"models": ["builtin:tiny"], "tenants": []},
        {"models": ["builtin:tiny"], "gateway": {"port": 0}},
    ],
)
def test_schema_marks_what_the_loader_refuses(data: object) -> None:
    assert list(jsonschema.Draft202012Validator(json.loads(schema_text())).iter_errors(data))


def test_schema_explains_every_field() -> None:
    definitions = json.loads(schema_text())["$defs"]
    for name, definition in definitions.items():
        for field, details in definition["properties"].items():
            assert details.get("description"), f"{name}.{field}"
