"""The command line of a keeper, and where the packages are that run beside engines. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from longboat.core.errors import EngineError

__all__ = ("engine_package", "keeper_argv")

_KEEPER_PACKAGE = "longboat_vllm"
_RUN_KEEPER = (
    "import sys; sys.path.insert(0, sys.argv[1].rpartition('/')[0]); import keeper; del sys.path[0]; "
    "sys.exit(keeper.main(sys.argv[2:]))"
)


def engine_package(name: str = _KEEPER_PACKAGE) -> Path:
    """Return the folder of a package that runs beside or inside engines; by default the one that has the keeper.

    Raises EngineError where it is missing.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(f"the package {name} is not installed", hint="install longboat again")
    return Path(spec.submodule_search_locations[0])


def keeper_argv(*words: str) -> list[str]:
    """Return the command line of the keeper, which needs only the standard library.

    It is imported and not run as a script: Python keeps the compiled code of a module, and compiles a script each time.
    """
    return [sys.executable, "-I", "-S", "-c", _RUN_KEEPER, str(engine_package() / "process" / "keeper.py"), *words]
