"""Finds the compiled forms of the modules that a request runs through, and lets Python import them in their place.

``hatch_build.py`` compiles them, with mypyc, from the same sources into ``longboat/_compiled``. They are used where
they are whole and as new as their sources, all of them or none; ``LONGBOAT_NATIVE=0`` turns them off. Without them
everything works the same, slower.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import sysconfig
from pathlib import Path

__all__ = ("FOLDER", "IS_COMPILED", "LIBRARY", "MANIFEST", "import_compiled", "stamp_of")

FOLDER = Path(__file__).resolve().parent / "_compiled"
MANIFEST = "built.json"
"""{"suffix": of extension modules, "sources": path in the package → stamp; null in a wheel: both came together}"""
LIBRARY = "longboat_hot__mypyc"
"""The module that holds the code of all of them."""


def stamp_of(source: Path) -> list[int]:
    """Changes when a source does."""
    seen = source.stat()
    return [seen.st_size, seen.st_mtime_ns]


def _is_usable() -> bool:
    if os.environ.get("LONGBOAT_NATIVE") == "0":
        return False
    try:
        built = json.loads((FOLDER / MANIFEST).read_bytes())
        if built["suffix"] != sysconfig.get_config_var("EXT_SUFFIX"):
            return False
        sources = built["sources"] or {}
        return all(stamp_of(FOLDER.parent / name) == stamp for name, stamp in sources.items()) and _load_library()
    except (OSError, ValueError, KeyError, ImportError):
        return False


def _load_library() -> bool:
    """The compiled modules look for it by this name, wherever it lies."""
    path = FOLDER / (LIBRARY + str(sysconfig.get_config_var("EXT_SUFFIX")))
    spec = importlib.util.spec_from_file_location(LIBRARY, path)
    if spec is None or spec.loader is None:
        return False
    library = importlib.util.module_from_spec(spec)
    sys.modules[LIBRARY] = library
    spec.loader.exec_module(library)
    return True


IS_COMPILED = _is_usable()
"""Whether the compiled forms are in use."""


def import_compiled(package: str, path: list[str]) -> None:
    """To be called by a package's ``__init__`` with its name and ``__path__``: its compiled modules come first."""
    if IS_COMPILED:
        path.insert(0, str(FOLDER / package.rpartition(".")[2]))
