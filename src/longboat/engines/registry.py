"""The registry of engines, by the name that the fleet file uses.

An engine of somebody else is an installed package with an entry point in the group ``longboat.engines``: its name is
the engine's, its value the adapter's class.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points

from longboat.core.errors import UserInputError
from longboat.core.wanted import EngineSplits
from longboat.engine_names import BUILT_IN, GROUP, engine_names
from longboat.engines.contract import EngineAdapter

__all__ = ("adapter_for", "installable", "splits_of")


@functools.cache
def adapter_for(kind: str) -> EngineAdapter:
    """Return the adapter of engine ``kind``.

    Raises UserInputError for a name that is not in the registry, or a package whose adapter cannot be used.
    """
    if kind in BUILT_IN:
        module, _, name = BUILT_IN[kind].partition(":")
        adapter: EngineAdapter = getattr(importlib.import_module(module), name)()
        return adapter
    found = entry_points(group=GROUP, name=kind)
    if not found:
        raise UserInputError(f"unknown engine {kind!r}", hint=f"known engines: {', '.join(engine_names())}")
    entry = next(iter(found))
    try:
        adapter = entry.load()()
    except Exception as error:  # code of somebody else
        what = f"the package of engine {kind!r} ({entry.value}) cannot be used: {error!r}"
        raise UserInputError(what, hint="install a version of it that fits this Longboat, or uninstall it") from error
    if not isinstance(adapter, EngineAdapter) or adapter.kind != kind:
        what = f"{entry.value} is not the adapter of an engine named {kind!r}"
        raise UserInputError(what, hint="its class must derive from EngineAdapter and carry that kind")
    return adapter


def splits_of(kind: str) -> EngineSplits:
    """Return how engine ``kind`` can split a model. Raises UserInputError as ``adapter_for``."""
    adapter = adapter_for(kind)
    able = adapter.abilities
    return EngineSplits(
        tensor="tensor" in able, experts={"expert", "data"} <= able, divides_layers=adapter.divides_layers
    )


def installable() -> dict[str, EngineAdapter]:
    """Return the engines that ``longboat engines install`` can install, by name."""
    adapters = {name: adapter_for(name) for name in engine_names()}
    return {name: adapter for name, adapter in adapters.items() if adapter.recipe is not None}
