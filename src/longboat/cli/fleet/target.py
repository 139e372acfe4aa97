"""What ``longboat up`` was given: a file, or just a model."""

from __future__ import annotations

import difflib
from pathlib import Path

from longboat.core.errors import UserInputError
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import fleet_from_source, load_fleet
from longboat.spec.types.fleet import Fleet

__all__ = ("load_target",)

FILE_SUFFIXES = (".yaml", ".yml")
MAX_FILE_BYTES = 1 << 20


def load_target(target: str) -> tuple[Fleet, str]:
    """The fleet and its canonical text.

    Raises UserInputError for a file that is not there or says something impossible.
    """
    path = Path(target)
    if path.is_file():
        fleet = load_fleet(_read(path), target)
    elif path.suffix in FILE_SUFFIXES:
        raise UserInputError(f"no file {target}", hint=_near(path))
    else:
        fleet = fleet_from_source(target, folder=str(Path.cwd()))
    return fleet, dump_fleet(fleet)


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UserInputError(
            f"{path} has {path.stat().st_size} bytes, the limit is {MAX_FILE_BYTES}", hint="split it up"
        )
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserInputError(f"{path} cannot be read: {error}", hint="give a YAML file in UTF-8") from error


def _near(path: Path) -> str:
    names = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1) or names[:1]
    return f"there is {path.parent / close[0]}" if close else "write one, or name a model: longboat up builtin:tiny"
