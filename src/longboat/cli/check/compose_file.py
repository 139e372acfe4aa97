"""A service of a compose file, as the ``docker run`` that starts the same. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from longboat.cli.plan.inputs.running_command import program_of
from longboat.core.errors import UserInputError

__all__ = ("words_of_compose",)

_READ = ("image", "command", "entrypoint", "environment", "ports", "container_name")


def words_of_compose(text: str) -> list[str] | None:
    """Return the words of a command; None for another text than a compose file.

    Raises UserInputError for a compose file without a service of an engine, or with several.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    services = document.get("services") if isinstance(document, Mapping) else None
    if not isinstance(services, Mapping):
        return None
    found = {
        str(name): words
        for name, service in services.items()
        if isinstance(service, Mapping) and program_of(words := list(_words(service)))
    }
    if len(found) == 1:
        return next(iter(found.values()))
    what = f"services of engines in the compose file: {', '.join(found) or 'none'}"
    raise UserInputError(what, hint="leave one service of vLLM, SGLang, llama.cpp or TGI in the file")


def _words(service: Mapping[str, Any]) -> Iterator[str]:
    yield from ("docker", "run")
    yield from (f"--{key}" for key in service if key not in _READ)  # options whose values the fleet file does not need
    for variable in _variables(service.get("environment")):
        yield from ("-e", variable)
    for port in service.get("ports") or ():
        told = f"{port.get('published', '')}:{port.get('target', '')}" if isinstance(port, Mapping) else str(port)
        yield from ("-p", told)
    yield str(service.get("image") or "")
    for key in ("entrypoint", "command"):
        yield from _command(service.get(key))


def _variables(given: Any) -> Iterator[str]:
    if isinstance(given, Mapping):
        yield from (f"{name}" if value is None else f"{name}={value}" for name, value in given.items())
    else:
        yield from (str(variable) for variable in given or ())


def _command(given: Any) -> list[str]:
    if isinstance(given, str):
        try:
            return shlex.split(given)
        except ValueError as error:
            raise UserInputError(f"a command of the compose file cannot be read: {error}", hint="close it") from None
    return [str(word) for word in given or ()]
