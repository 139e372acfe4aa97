"""Whether this machine has llama.cpp, for tests that run it."""

from __future__ import annotations

from longboat.core.errors import LongboatError
from longboat.engines.environments.environment import find_environment
from longboat.engines.registry import adapter_for
from longboat.folders import home_folder

__all__ = ("why_no_llama_cpp",)


def why_no_llama_cpp(*, over_nodes: bool = False) -> str:
    """Return why llama.cpp cannot be tested here; empty where it can."""
    try:
        environment = find_environment("llama.cpp", version=None, path=None, home=home_folder())
    except LongboatError as error:
        return error.message
    return adapter_for("llama.cpp").lacking(environment).get("nodes", "") if over_nodes else ""
