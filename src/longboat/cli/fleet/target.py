"""What ``longboat up`` was given: a file, or just a model."""

from __future__ import annotations

import difflib
from pathlib import Path

from longboat.core.errors import UserInputError
from longboat.spec.files.load import Reading, read_fleet, read_source

__all__ = ("read_target",)

FILE_SUFFIXES = (".yaml", ".yml")
MAX_FILE_BYTES = 1 << 20


def read_target(target: str) -> Reading:
    """Read a fleet file, or a model, with all its mistakes.

    Raises UserInputError for a file that is not there or cannot be read.
    """
    path = Path(target)
    if path.is_file():
        return read_fleet(_read(path), target)
    if path.suffix in FILE_SUFFIXES:
        raise UserInputError(f"no file {target}", hint=_near(path))
    return read_source(target, folder=str(Path.cwd()))


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UserInputError(
            f"{path} has {path.stat().st_size} bytes, the limit is {MAX_FILE_BYTES}",
            hint="is this the right file? A fleet file has a few kilobytes",
        )
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserInputError(f"{path} cannot be read: {error}", hint="give a YAML file in UTF-8") from error


def _near(path: Path) -> str:
    names = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1) or names[:1]
    return f"there is {path.parent / close[0]}" if close else "write one, or name a model: longboat up builtin:tiny"
