"""Commands that are made when they are used."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from longboat.cli.app import app as longboat_app
from longboat.cli.completion.deferred import defer
from longboat.cli.shared.command_list import CommandList
from longboat.core.errors import UserInputError


def all_commands(group: Any, path: str = "") -> dict[str, Any]:
    """Return the commands that are no groups, by their words."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        words = f"{path} {name}".strip()
        found |= all_commands(command, words) if hasattr(command, "commands") else {words: command}
    return found


def app_of_two() -> typer.Typer:
    app, inner = (typer.Typer(cls=CommandList, rich_markup_mode=None) for _ in range(2))

    @app.callback()
    def common() -> None:
        """Do two things."""

    @app.command()
    def show(
        name: str,
        more: Annotated[list[str] | None, typer.Option()] = None,
        days: Annotated[int, typer.Option(min=1, max=9)] = 7,
        plain: Annotated[bool, typer.Option("--plain")] = False,
    ) -> None:
        """Show values. The second sentence."""
        typer.echo(json.dumps([name, more, days, plain]))

    @inner.command("last-one")
    def last() -> None:
        """Do the last thing."""
        typer.echo("last")

    @inner.command()
    def lines(follow: Annotated[bool, typer.Option("--follow")] = False) -> None:
        """Print lines."""
        typer.echo("a line")

    @inner.command()
    def ends() -> None:
        """End early."""
        typer.echo("half")
        raise typer.Exit(3)

    app.add_typer(inner, name="inner", help="Things inside.")
    defer(app)
    return app


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("show a", ["a", None, 7, False]),
        ("show 3 --more x --more y --days 9 --plain", ["3", ["x", "y"], 9, True]),
    ],
    ids=["defaults", "given"],
)
def test_values_have_the_types_of_their_options(words: str, values: list[Any]) -> None:
    done = CliRunner().invoke(app_of_two(), words.split())
    assert json.loads(done.stdout) == values


@pytest.mark.parametrize("words", ["show a --days 10", "show a --days x", "show", "inner nothing"])
def test_wrong_words_are_refused(words: str) -> None:
    assert CliRunner().invoke(app_of_two(), words.split()).exit_code == 2


def test_a_value_does_not_change_how_the_next_line_of_the_process_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer(cls=CommandList, rich_markup_mode=None)

    @app.callback()
    def common() -> None:
        """Do one thing."""

    @app.command()
    def show(tokens: Annotated[int, typer.Option(parser=lambda text: int(text.strip()))] = 8) -> None:
        typer.echo(tokens)

    defer(app)
    root = typer.main.get_command(app)
    for line in ("show --tokens 9", "show"):
        root.main(line.split(), standalone_mode=False)
    assert capsys.readouterr().out == "9\n8\n"


def test_a_command_without_a_document_prints_its_lines_as_one() -> None:
    done = CliRunner().invoke(app_of_two(), ["inner", "last-one", "--json"])
    assert json.loads(done.stdout) == {"output": ["last"]}
    ended = CliRunner().invoke(app_of_two(), ["inner", "ends", "--json"])
    assert json.loads(ended.stdout) == {"output": ["half"]}
    assert ended.exit_code == 3


def test_what_is_followed_has_no_document() -> None:
    assert json.loads(CliRunner().invoke(app_of_two(), ["inner", "lines", "--json"]).stdout) == {"output": ["a line"]}
    with pytest.raises(UserInputError, match="never ends"):
        CliRunner().invoke(app_of_two(), ["inner", "lines", "--follow", "--json"], catch_exceptions=False)


def test_every_command_has_json_or_prints_as_it_goes() -> None:
    commands = all_commands(typer.main.get_command(longboat_app))
    without = {name for name, command in commands.items() if not any("--json" in p.opts for p in command.params)}
    assert without == {"chat", "demo", "gateway run", "schema", "weights share"}


def test_a_command_of_a_group_in_the_group_runs() -> None:
    assert CliRunner().invoke(app_of_two(), ["inner", "last-one"]).stdout == "last\n"


def test_help_lists_commands_without_making_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a command was made")

    monkeypatch.setattr("longboat.cli.completion.deferred.get_command_from_info", fail)
    shown = CliRunner().invoke(app_of_two(), ["--help"]).stdout
    assert "Show values." in shown
    assert "Things inside." in shown
    assert "Did you mean 'show'?" in CliRunner().invoke(app_of_two(), ["shwo"]).output
