"""The demo works from the package alone, with the text of the example."""

from __future__ import annotations

from pathlib import Path

from longboat.cli.file.target import read_target
from longboat.cli.fleet.demo import DEMO_FILE

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo.yaml"


def test_the_built_in_fleet_is_the_example() -> None:
    assert DEMO_FILE.read_text() == EXAMPLE.read_text()


def test_the_built_in_fleet_can_be_loaded() -> None:
    fleet = read_target(str(DEMO_FILE)).whole()
    assert fleet.models[0].source == "builtin:tiny"
