"""What ``--help`` says: every command in its panel with a whole line, every argument and option with words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from longboat.cli.app import app

WIDTH = 80


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


ALL = dict(commands(typer.main.get_command(app)))
PLANNING = ("plan", "fit", "cost")  # their words have a test of their own


def help_of(*words: str) -> list[str]:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH)})
    assert done.exit_code == 0
    return str(done.output).splitlines()


def test_commands_stand_in_panels_in_the_order_of_use() -> None:
    lines = help_of()
    titles = [line.removesuffix(":") for line in lines if line and not line.startswith((" ", "Usage"))]
    assert titles == ["Options", "Run", "Look", "Plan", "Set up", "Keep"]
    listed = [line.split()[0] for line in lines[lines.index("Run:") :] if line.startswith("  ")]
    assert sorted(listed) == sorted(ALL[()].commands)
    assert listed.index("up") < listed.index("status") < listed.index("check") < listed.index("node")


@pytest.mark.parametrize("words", [(), ("keys",), ("node",), ("engines",), ("gateway",)])
def test_each_command_has_a_whole_line(words: tuple[str, ...]) -> None:
    lines = help_of(*words)
    for name, command in ALL[words].commands.items():
        (line,) = [line for line in lines if line.startswith(f"  {name} ") and "placed by Ray" not in line]
        assert len(line) <= WIDTH
        assert line.endswith(command.get_short_help_str(1000))


def test_help_of_plan_shows_how_to_plan_a_model() -> None:
    usage, *_, last = (line for line in help_of("plan") if line)
    assert usage == "Usage: longboat plan MODEL --on MACHINES [OPTIONS]"
    assert "longboat plan model --help" in last


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (("scale",), "MODEL REPLICAS"),
        (("demo",), "[FILE]"),
        (("why",), "[ID]"),
        (("weights", "evict"), "NAME..."),
        (("keys", "revoke"), "KEY_ID"),
        (("engines", "install"), "ENGINE[@VERSION]"),
    ],
)
def test_arguments_are_written_as_in_the_documentation(words: tuple[str, ...], arguments: str) -> None:
    assert help_of(*words)[0] == f"Usage: longboat {' '.join(words)} [OPTIONS] {arguments}"


def test_commands_below_plan_are_described_in_whole_sentences() -> None:
    told = " ".join(" ".join(help_of("plan")).split())
    for command in ALL[("plan",)].commands.values():
        assert command.get_short_help_str(1000) in told


@pytest.mark.parametrize(
    "words", [words for words in ALL if words[:1] not in {(name,) for name in PLANNING}], ids=" ".join
)
def test_each_argument_and_option_is_explained(words: tuple[str, ...]) -> None:
    assert [param.name for param in ALL[words].params if not getattr(param, "help", None)] == []
