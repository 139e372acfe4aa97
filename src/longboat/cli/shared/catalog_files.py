"""Loads the catalog; the user's files override it: each ``*.toml`` in ``LONGBOAT_HOME/catalog``, and named files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from longboat.catalog.library import Library, built_in_files, built_in_library, load_library
from longboat.core.errors import UserInputError
from longboat.folders import home_folder

__all__ = ("read_library",)


def read_library(named: Iterable[Path] = (), home: Path | None = None) -> Library:
    """Read the catalog. The last entry of a name counts: built-in, the home folder's files by name, those named.

    Raises UserInputError where a file cannot be read, or is wrong.
    """
    folder = (home or home_folder()) / "catalog"
    own = [*sorted(folder.glob("*.toml")), *named]
    return load_library([*built_in_files(), *((str(path), _text(path)) for path in own)]) if own else built_in_library()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserInputError(f"{path} cannot be read: {error}", hint="a catalog file is TOML in UTF-8") from None
