"""Groups of commands: their list in ``--help``, in panels and in the order of use, and in completions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from typer.core import TyperGroup
from typer.exceptions import TyperException

from longboat.cli.completion.deferred import DeferredCommands, hastened
from longboat.cli.shared.error_text import print_error_document
from longboat.cli.shared.interrupts import exit_code
from longboat.core.errors import UserInputError

__all__ = ("CommandList", "CommandPanels")

NO_LIMIT = 1000
NEGATIVE = re.compile(r"-[0-9]")
"""What reads as an option that no command has, where an argument was meant."""


class CommandList(TyperGroup):
    """A group of commands, each made when it is used, whose descriptions are never cut off."""

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Title → names of commands; commands that stand in none of them follow under "Commands"."""

    later: ClassVar[Mapping[str, Any]] = {}
    """Name → what Typer knows of a command."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.deferred = DeferredCommands(self.later)
        self.commands: Any = self.deferred

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options that stand before a command."""
        return hastened(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the name of a command, or an option before it."""
        self.commands = self.deferred.outlines()
        return super().shell_complete(ctx, incomplete)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each panel with a line for each of its commands."""
        outlines = self.deferred.outlines()
        known = {name for names in self.panels.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in known)
        for title, names in {**self.panels, "Commands": others}.items():
            if rows := [(name, outlines[name].get_short_help_str(NO_LIMIT)) for name in names]:
                with formatter.section(title):
                    formatter.write_dl(rows)


@contextmanager
def _document_of_usage(words: Sequence[str] = ()) -> Iterator[None]:
    """Print wrong words of a command as a document too, where it was asked for JSON. Typer prints them on stderr.

    words: of the command, from which a number is named whole where Typer names its first digit
    """
    try:
        yield
    except TyperException as error:
        if isinstance(error.__cause__, ValueError) and (plain := _in_words(error.__cause__)):
            error.message = plain
        if NEGATIVE.fullmatch(name := str(getattr(error, "option_name", ""))):
            number = next((word for word in words if word.startswith(name)), name)
            error.message = f"{number} is below 0, and this command takes no number below 0"
        if "--json" in sys.argv and (said := getattr(error, "format_message", None)) is not None:
            place = getattr(getattr(error, "ctx", None), "command_path", "longboat")
            print_error_document(UserInputError(said(), hint=f"{place} --help shows what it takes"))
        raise


_WORDS: Mapping[str, str] = {
    "float_parsing": "{input!r} is not a number; write it like 30 or 0.5",
    "int_parsing": "{input!r} is not a whole number; write it like 30",
    "int_from_float": "{input!r} is not a whole number; write it like 30",
    "greater_than_equal": "{input} is below {ge:.10g}, the smallest value",
    "less_than_equal": "{input} is above {le:.10g}, the largest value",
}
"""Kind of a mistake in pydantic's words → what a user gets to read."""


def _in_words(cause: ValueError) -> str:
    """Return what is wrong with an option's value, with the value and its limit; empty where pydantic's words stay."""
    for found in getattr(cause, "errors", list)():
        if found["type"] in _WORDS:
            return _WORDS[found["type"]].format(input=found["input"], **found.get("ctx", {}))
    return ""


class CommandPanels(CommandList):
    """The commands of ``longboat`` itself."""

    def make_context(self, *args: Any, **given: Any) -> Any:
        """Read the words before the command."""
        with _document_of_usage():
            return super().make_context(*args, **given)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; one that a signal ended exits as the shell expects of that signal."""
        try:
            with _document_of_usage(ctx.args):
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise SystemExit(exit_code(interrupt)) from None

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Run": ("demo", "up", "chat", "start", "stop", "scale", "pause", "resume", "drain", "down"),
        "Look": ("status", "console", "routes", "why", "logs", "usage", "dashboards"),
        "Plan": ("init", "check", "plan", "fit", "cost", "simulate", "schema"),
        "Set up": ("cluster", "bundle", "node", "engines", "weights", "adapters", "keys", "gateway"),
        "Keep": ("backup", "restore", "version"),
    }
