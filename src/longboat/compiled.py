"""Finds the compiled forms of the modules that a request runs through, and lets Python import them in their place.

``hatch_build.py`` compiles them, with mypyc, from the same sources into ``longboat/_compiled``. They are used where
they are whole and as new as their sources, all of them or none; ``LONGBOAT_NATIVE=0`` turns them off. Without them
everything works the same, slower.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import sysconfig
from pathlib import Path

__all__ = ("FOLDER", "IS_COMPILED", "LIBRARY", "MANIFEST", "digest_of", "import_compiled")

FOLDER = Path(__file__).resolve().parent / "_compiled"
MANIFEST = "built.json"
"""{"suffix": of extension modules, "sources": path in the package → digest of the source}"""
LIBRARY = "longboat_hot__mypyc"
"""The module that holds the code of all of them."""


def digest_of(source: Path) -> str:
    """Changes when a source does; the same wherever it lies. All of them are read in two milliseconds."""
    return hashlib.blake2b(source.read_bytes(), digest_size=16).hexdigest()


def _is_usable() -> bool:
    if os.environ.get("LONGBOAT_NATIVE") == "0":
        return False
    try:
        built = json.loads((FOLDER / MANIFEST).read_bytes())
        if built["suffix"] != sysconfig.get_config_var("EXT_SUFFIX"):
            return False
        sources = dict(built["sources"])
        return all(digest_of(FOLDER.parent / name) == seen for name, seen in sources.items()) and _load_library()
    except (OSError, ValueError, TypeError, KeyError, ImportError):
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
