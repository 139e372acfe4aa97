"""Lets Python import the compiled forms of the modules that a request runs through in place of their sources.

``hatch_build.py`` compiles them with mypyc into ``longboat/_compiled``. They are used only where all of
them are present and match their sources; ``LONGBOAT_NATIVE=0`` turns them off. Without them everything works, slower.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**traits: Any) -> Any:
        """Return a decorator of classes that tells mypyc something and changes nothing by itself.

        acyclic: instances are in no cycle of references, and do without the collector of cycles
        free_list_len: 1 keeps the memory of the last instance that was freed for the next one
        allow_interpreted_subclasses: tests may derive classes that are not compiled
        """
        return lambda cls: cls


__all__ = ("FOLDER", "IS_COMPILED", "LIBRARY", "MANIFEST", "digest_of", "mypyc_attr")

FOLDER = Path(__file__).resolve().parent / "_compiled"
MANIFEST = "built.json"
"""{"suffix": of extension modules, "sources": path in the package → digest of the source}"""
LIBRARY = "longboat_hot__mypyc"
"""The extension module that holds the code of all of them."""
_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


def digest_of(source: Path) -> str:
    """Digest a source by its bytes. All of them are read in a few milliseconds."""
    return hashlib.blake2b(source.read_bytes(), digest_size=16).hexdigest()


class _CompiledFinder:
    """Finds compiled modules by name, before Python looks for their sources."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, file)


def _fresh_files() -> dict[str, Path]:
    """Map module names to compiled files; empty where one is missing or older than its source."""
    if os.environ.get("LONGBOAT_NATIVE") == "0":
        return {}
    try:
        built = json.loads((FOLDER / MANIFEST).read_bytes())
        if built["suffix"] != _SUFFIX:
            return {}
        sources = dict(built["sources"])
        if any(digest_of(FOLDER.parent / name) != seen for name, seen in sources.items()):
            return {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    stems = [name.removesuffix(".py") for name in sources]
    files = {f"longboat.{stem.replace('/', '.')}": FOLDER / f"{stem}{_SUFFIX}" for stem in stems}
    return {**files, LIBRARY: FOLDER / f"{LIBRARY}{_SUFFIX}"}


def _install() -> bool:
    files = _fresh_files()
    if not files or not all(file.exists() for file in files.values()):
        return False
    sys.meta_path.insert(0, _CompiledFinder(files))
    return True


IS_COMPILED = _install()
"""Whether the compiled forms are in use."""
