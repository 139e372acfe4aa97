"""The registry of engines, by the name that the fleet file uses."""

from __future__ import annotations

import importlib

from longboat.core.errors import UserInputError
from longboat.engines.contract import EngineAdapter

__all__ = ("ENGINES", "adapter_for")

ENGINES = {"vllm": "longboat.engines.vllm.adapter:VllmAdapter", "fake": "longboat.engines.fake:FakeAdapter"}


def adapter_for(kind: str) -> EngineAdapter:
    """Return the adapter of engine ``kind``.

    Raises UserInputError for a name that is not in the registry.
    """
    if kind not in ENGINES:
        raise UserInputError(f"unknown engine {kind!r}", hint=f"known engines: {', '.join(sorted(ENGINES))}")
    module, _, name = ENGINES[kind].partition(":")
    adapter: EngineAdapter = getattr(importlib.import_module(module), name)()
    return adapter
