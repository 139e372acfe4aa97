"""``longboat init``: a first fleet file for these machines, commented, and checked before it is kept."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
import yaml

from longboat.cli.check.command import check_target
from longboat.cli.check.first_model import Choice, Found, choose, look
from longboat.cli.check.from_command import fleet_of_command
from longboat.cli.check.machines import machines_for
from longboat.cli.shared.console import make_console
from longboat.core.errors import UserInputError, unwritable
from longboat.spec.types.section import is_loopback
from longboat.spec.types.source import is_local_path

__all__ = ("InitRequest", "ask_host", "file_text", "run_init")

HERE = "here"
"""What ``--on`` calls this machine."""
MAX_COMMAND = 1 << 20
"""Characters of a command that are read of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """What ``longboat init`` was given; empty values are asked for, or found."""

    file: str
    model: str = ""
    on: str = ""  # machines in words; empty: this machine
    users: int = 0
    host: str = ""
    port: int = 0  # 0: the command's, or 8000
    command: str = ""  # of an engine, the name of a file that holds it, or - for stdin
    yes: bool = False  # take what was found, and ask nothing
    force: bool = False  # write over a file


def run_init(request: InitRequest) -> None:
    """Write the file and say what comes next. Raises UserInputError where there is nothing to write, or a file."""
    path = Path(request.file)
    if path.is_dir():
        raise UserInputError(f"{path} is a folder", hint=f"name the file to write: {path / 'fleet.yaml'}")
    if path.exists() and not request.force:
        raise UserInputError(f"{path} exists", hint="give another name, or --force to write over it")
    _check_host(request.host, request.on)
    if request.command:
        _write_from_command(request, path)
        return
    found = look(request.on)
    print("\n".join(found.lines))
    asks = not request.yes and sys.stdin.isatty()
    users = request.users or (_ask_number("requests at once", 8) if asks else 8)
    choice = choose(found, users, _model_here(request.model, request.on))
    if asks and not request.model:
        name = _ask("model", choice.source)
        choice = choice if name == choice.source else choose(found, users, _model_here(name, request.on))
    host = request.host or (ask_host(request.on) if asks else "")
    on = shlex.quote(request.on) if request.on else HERE
    text = file_text(found, choice, users, host or "127.0.0.1", request.port or 8000, on)
    _write_checked(path, text, request.force)
    _say_next(path, engine=choice.engine, host=host, on=on)
    if choice.expected:
        print(f"expected: {choice.expected}")


def _write_from_command(request: InitRequest, path: Path) -> None:
    """Write the file that does what the command of an engine does."""
    if request.model or request.users:
        raise UserInputError("--from has the model and its settings", hint="leave out --model and --users")
    command = _command(request.command)
    text = fleet_of_command(command, env=os.environ, folder=str(Path.cwd()), host=request.host, port=request.port)
    _write_checked(path, text, request.force)
    print("\n".join(line for line in text.splitlines() if line.startswith("# left out")))
    on = shlex.quote(request.on) if request.on else HERE
    document = yaml.safe_load(text)
    engine = document["models"][0].get("engine", {}).get("kind", "vllm")
    _say_next(path, engine=engine, host=str(document["gateway"]["host"]), on=on)


def _command(given: str) -> str:
    """Return the command: as given, or the text of stdin or of a file."""
    if given == "-":
        return sys.stdin.read(MAX_COMMAND)
    if " " in given.strip():
        return given
    try:
        with Path(given).open() as file:
            return file.read(MAX_COMMAND)
    except (OSError, UnicodeDecodeError) as error:
        hint = 'write the command in quotes, the name of a file that holds it, or - for stdin: "vllm serve MODEL"'
        raise UserInputError(f"{given} cannot be read: {error}", hint=hint) from None


def _check_host(host: str, on: str) -> None:
    """Raise UserInputError for a host that this machine's gateway cannot listen on; other machines may have it."""
    from longboat.cluster.preflight.checks import listening_problems

    if host and not on and (problem := listening_problems(host, 0)[0]):
        hint = "give an address of this machine, 0.0.0.0 for every card, or 127.0.0.1 for this machine only"
        raise UserInputError(problem, hint=hint)


def _model_here(model: str, on: str) -> str:
    """Return the model. Raises UserInputError for a folder that this machine lacks; other machines may have it."""
    if is_local_path(model) and not on and not Path(model).exists():
        raise UserInputError(f"no folder {model} here", hint="give a model's folder, hf:ORG/NAME or builtin:tiny")
    return model


def ask_host(on: str) -> str:
    """Ask for the address to listen on, again where this machine lacks it: no other answer is lost."""

    def checked(host: str) -> str:
        try:
            _check_host(host, on)
        except UserInputError as error:
            raise typer.BadParameter(f"{error.message}: {error.hint}") from None
        return host

    asked: str = typer.prompt("address to listen on (0.0.0.0: every card)", "127.0.0.1", value_proc=checked)
    return asked


def _ask(what: str, usual: str) -> str:
    return str(typer.prompt(what, default=usual))


def _ask_number(what: str, usual: int) -> int:
    return int(typer.prompt(what, default=usual, type=int))


def _write_checked(path: Path, text: str, force: bool) -> None:
    """Write the file where it is sound, and keep none otherwise. Raises UserInputError with the problems."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        checked = check_target(str(part), (), machines_for("none", make_console(stderr=True)))
        if checked.problems:
            first = checked.problems[0]
            raise UserInputError(str(first), hint=first.hint, problems=tuple(checked.problems))
        if path.exists() and not force:
            raise UserInputError(f"{path} exists", hint="give another name, or --force to write over it")
        part.rename(path)
    except OSError as error:
        raise unwritable(path, error, hint="give another folder") from None
    finally:
        part.unlink(missing_ok=True)


def _say_next(path: Path, *, engine: str, host: str, on: str) -> None:
    print(f"\nwrote {path}. Next:")
    if engine == "tgi":
        print("  name TGI's folder as engine.environment: docs/guides/tgi.md")
    elif on != HERE:
        print(f"  longboat engines install {engine}   # on each machine, once")
    elif not _is_installed(engine):
        print(f"  longboat engines install {engine}")
    print(f"  longboat check {path} --on {on}")
    print(f"  longboat up {path}")
    if host and not is_loopback(host):
        print("  longboat keys create --tenant default   # in another terminal: the gateway asks for a key")


def _is_installed(engine: str) -> bool:
    from longboat.engines.environments.environment import find_environment
    from longboat.folders import home_folder

    try:
        find_environment(engine, version=None, path=None, home=home_folder())
    except UserInputError:
        return False
    return True


def file_text(found: Found, choice: Choice, users: int, host: str, port: int, on: str = HERE) -> str:
    """Return the file, with a comment beside everything that one may want to change."""
    lines = [
        *(f"# {line}" for line in found.lines),
        f"# Every field: docs/reference/fleet-file.md. Check after changes: longboat check FILE --on {on}",
        "apiVersion: longboat/v1",
        "name: longboat",
        "models:",
        *_model_lines(choice, users),
        *_gateway_lines(host, port),
    ]
    return "\n".join(lines) + "\n"


def _model_lines(choice: Choice, users: int) -> Iterator[str]:
    yield f"  - name: {_in_yaml(choice.name)}   # clients send this name"
    yield f"    source: {_in_yaml(choice.source)}"
    yield from (f"    # {line}" for line in choice.why)
    if choice.engine != "vllm":
        yield f"    engine: {choice.engine}"
    if choice.context:
        yield f"    context: {choice.context}   # longest request in tokens; more leaves room for fewer requests"
    if choice.split:
        yield "    split: auto   # the planner divides it over several cards"
    yield "    replicas: 1"
    yield "    # replicas: {min: 1, max: 4}   # or let the number follow the load"
    yield "    load:   # what the planner plans for"
    yield f"      users: {users}"
    yield "      prompt_tokens: 1024"
    yield "      output_tokens: 256"
    if choice.engine != "vllm":
        return
    yield "    # engine:"
    yield "    #   args: [--enable-prefix-caching]"
    yield "    #   env:"
    yield "    #     HF_TOKEN: ${HF_TOKEN}   # of your shell, for models that ask for a licence"


def _in_yaml(text: str) -> str:
    """Return a text as YAML reads it again, in quotes where it needs them."""
    try:
        is_plain = yaml.safe_load(f"text: {text}") == {"text": text}
    except yaml.YAMLError:
        is_plain = False
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _gateway_lines(host: str, port: int) -> Iterator[str]:
    yield "gateway:"
    yield f"  host: {_in_yaml(host)}"
    yield f"  port: {port}"
    if is_loopback(host):
        yield "  auth: none   # anyone on this machine; for the network, write host: 0.0.0.0 and auth: keys"
    else:
        yield "  auth: keys   # longboat keys create --tenant default makes one"
