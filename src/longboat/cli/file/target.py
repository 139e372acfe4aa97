"""What ``longboat up`` was given: files, or just a model."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from longboat.core.errors import UserInputError
from longboat.spec.files.load import Reading, read_files, read_source

__all__ = ("can_be_read_once", "check_names", "first_and_rest", "read_target")

FILE_SUFFIXES = (".yaml", ".yml")
MAX_FILE_BYTES = 1 << 20
STDIN = "-"
_ONCE_HINT = "name it once; write its text to a file to use it several times"


def first_and_rest(target: str | None, overlays: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the first file and those that are merged onto it. Raises UserInputError where there is none."""
    names = (*([target] if target is not None else ()), *overlays)
    if not names:
        raise UserInputError("no file is given", hint="name a fleet file, - for stdin, or a model: builtin:tiny")
    return names[0], names[1:]


def read_target(target: str, overlays: Sequence[str] = (), *, env: Mapping[str, str] = os.environ) -> Reading:
    """Read a fleet file, or a model, with all its mistakes.

    target, overlays: files that are merged in this order; ``-`` is stdin; env: what ``${NAME}`` in them stands for
    Raises UserInputError for a file that is not there or cannot be read.
    """
    names = [target, *overlays]
    check_names(names)
    if not overlays and not _is_file(target):
        return read_source(target, folder=str(Path.cwd()))
    folder = Path.cwd() if target == STDIN else Path(target).absolute().parent
    files = [("stdin" if name == STDIN else name, _text(name)) for name in names]
    return read_files(files, folder=str(folder), variables=env)


def check_names(names: Sequence[str]) -> None:
    """Check that no name is empty, and no file named twice that can be read only once. Raises UserInputError else."""
    if "" in names:
        hint = "is a variable of your shell unset? Name a fleet file, - for stdin, or a model: builtin:tiny"
        raise UserInputError("the name of a file is empty", hint=hint)
    for name in names:
        if names.count(name) > 1 and can_be_read_once(name):
            known = "stdin" if name == STDIN else name
            raise UserInputError(f"{known} is named {names.count(name)} times and can be read once", hint=_ONCE_HINT)


def can_be_read_once(name: str) -> bool:
    """Return whether reading it takes the text away: stdin, and a pipe."""
    return name == STDIN or (_can_be_read(Path(name)) and Path(name).is_fifo())


def _is_file(target: str) -> bool:
    return target == STDIN or _can_be_read(Path(target)) or Path(target).suffix in FILE_SUFFIXES


def _can_be_read(path: Path) -> bool:
    """Return whether it is a file, or a pipe: ``<(command)`` of a shell."""
    try:
        return path.is_file() or path.is_fifo()
    except OSError:  # such as a name that is too long
        return False


def _text(name: str) -> str:
    """Return the file's text. Raises UserInputError where it is not there or cannot be read."""
    if name == STDIN:
        if sys.stdin is None:
            raise UserInputError("stdin is closed", hint="name a fleet file")
        return _bounded(sys.stdin.read(MAX_FILE_BYTES + 1), "stdin")
    path = Path(name)
    if path.is_dir():
        raise UserInputError(f"{name} is a folder, not a fleet file", hint=_near(path / path.name))
    if not _can_be_read(path):
        raise UserInputError(f"no file {name}", hint=_near(path))
    return _read(path)


def _bounded(text: str, name: str) -> str:
    if len(text) > MAX_FILE_BYTES:
        hint = "is this the right file? A fleet file has a few kilobytes"
        raise UserInputError(f"{name} has more than {MAX_FILE_BYTES} bytes", hint=hint)
    return text


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UserInputError(
            f"{path} has {path.stat().st_size} bytes, the limit is {MAX_FILE_BYTES}",
            hint="is this the right file? A fleet file has a few kilobytes",
        )
    try:
        with path.open() as file:
            return _bounded(file.read(MAX_FILE_BYTES + 1), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserInputError(f"{path} cannot be read: {error}", hint="give a YAML file in UTF-8") from error


def _near(path: Path) -> str:
    names = [p.name for p in path.parent.glob("*.y*ml") if _can_be_read(p)] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1) or names[:1]
    return f"there is {path.parent / close[0]}" if close else "write one, or name a model: longboat up builtin:tiny"
