"""The names of the engines that a fleet file may have; an engine itself is imported only where it is used."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points

__all__ = ("BUILT_IN", "GROUP", "engine_names")

GROUP = "longboat.engines"
"""The entry point group by which packages add engines."""

BUILT_IN = {
    "vllm": "longboat.engines.vllm.adapter:VllmAdapter",
    "sglang": "longboat.engines.sglang.adapter:SglangAdapter",
    "llama.cpp": "longboat.engines.llamacpp.adapter:LlamaCppAdapter",
    "tgi": "longboat.engines.tgi.adapter:TgiAdapter",
    "fake": "longboat.engines.fake:FakeAdapter",
}
"""Engine → its adapter's class."""


@functools.cache
def engine_names() -> tuple[str, ...]:
    """Return the engines that come with Longboat, then those of installed packages by name."""
    return (*BUILT_IN, *sorted({entry.name for entry in entry_points(group=GROUP)} - BUILT_IN.keys()))
