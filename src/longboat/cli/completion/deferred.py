"""Commands that Typer makes when they are used: making all of them takes longer than most of them run."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command_from_info, get_command_name, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from longboat.core.errors import UserInputError

__all__ = ("DeferredCommands", "defer", "hastened")

Info = CommandInfo | TyperInfo
JSON = "as_json"
_NO_BRACES = str.maketrans("", "", "{}")
STREAMED = frozenset({"chat", "demo", "run", "schema", "share"})
"""Commands that print until they are interrupted, or whose output is a document in any case."""


def defer(app: typer.Typer) -> None:
    """Let ``app``, and the apps in it, make each command when it is used. The class of each is a ``CommandList``.

    The outermost has a callback: Typer takes it for a group by that.
    """
    for info in app.registered_groups:
        assert info.typer_instance is not None
        defer(info.typer_instance)
    infos: list[Info] = [*app.registered_commands, *app.registered_groups]
    later = {_name(info): info for info in infos}
    own: Any = app.info.cls
    app.info.cls = type(own.__name__, (own,), {"later": later})
    app.registered_commands, app.registered_groups = [], []


def _name(info: Info) -> str:
    return info.name or get_command_name(info.callback.__name__ if info.callback else "")


class DeferredCommands(Mapping[str, Any]):
    """The commands of a group by name, each made when it is asked for."""

    def __init__(self, later: Mapping[str, Info]) -> None:
        self._later = later
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(self._later[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._later)

    def __len__(self) -> int:
        return len(self._later)

    def outlines(self) -> dict[str, Any]:
        """Return each command with its name and its help alone, which lists and completions need."""
        return {
            name: TyperCommand(name, help=_help(info), hidden=info.hidden is True) for name, info in self._later.items()
        }


def _help(info: Info) -> str:
    text = info.help if isinstance(info.help, str) else inspect.getdoc(info.callback) if info.callback else ""
    return inspect.cleandoc(text or "")


def _made(info: Info) -> Any:
    if isinstance(info, TyperInfo):
        return get_group_from_info(info, pretty_exceptions_short=True, suggest_commands=True, rich_markup_mode=None)
    info.cls = _QuickCommand
    command: Any = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
    for param in command.params:
        if param.param_type_name == "argument" and param.metavar is None:
            param.metavar = param.name.upper()
    if not any("--json" in param.opts for param in command.params) and _name(info) not in STREAMED:
        command.collects = True
        command.params.append(_json_option())
    return command


class _QuickCommand(TyperCommand):
    # Whether it has no document of its own, so that --json collects its lines.
    collects = False

    def get_params(self, ctx: Any) -> list[Any]:
        return hastened(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line as the documentation writes them: ``MODEL``, not ``{MODEL}``."""
        return [piece.translate(_NO_BRACES) for piece in super().collect_usage_pieces(ctx)]

    def invoke(self, ctx: Any) -> Any:
        """Run the command; one without a document of its own prints its lines as one."""
        if not self.collects or not ctx.params.pop(JSON):
            return super().invoke(ctx)
        if ctx.params.get("follow"):
            raise UserInputError(
                "--follow never ends, so there is no JSON document", hint="leave out --follow or --json"
            )
        left: BaseException | None = None
        with contextlib.redirect_stdout(io.StringIO()) as said:
            try:
                super().invoke(ctx)
            except (typer.Exit, SystemExit) as end:
                left = end
        print(json.dumps({"output": said.getvalue().splitlines()}, indent=2), flush=True)
        if left is not None:
            raise left


def _given(as_json: Annotated[bool, typer.Option("--json", help="Print its lines as JSON.")] = False) -> None:
    """Hold the option."""


def _json_option() -> Any:
    info = CommandInfo(callback=_given)
    (option,) = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None).params
    return option


def hastened(params: list[Any]) -> list[Any]:
    """Spare options pydantic, which Typer loads for the value of each, even of one that was not given."""
    for param in params:
        if getattr(param, "_runtime_param", param) is None:
            param._runtime_param = _AsGiven()
    return params


class _AsGiven:
    """Takes over a value that needs no conversion, and leaves every other one to Typer."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value in the type of its option. Raises BadParameter, as Typer does."""
        of = param.type_descriptor
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is of.annotation and (value == param.default or not (of.is_ranged or of.is_choice)):
            return value
        param._runtime_param = None
        typers = param.get_runtime_param()
        param._runtime_param = self  # Typer's would read the default of the next command line too
        return typers.coerce(value, param=param, ctx=ctx)
