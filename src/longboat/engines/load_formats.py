"""Formats with which vLLM and SGLang load weights (``--load-format``): what each needs, and what it does to memory."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("FLAG", "is_as_planned", "packages_for")

FLAG = "--load-format"
_PACKAGES = {
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
    "runai_streamer": "runai-model-streamer",
    "runai_streamer_sharded": "runai-model-streamer",
    "tensorizer": "tensorizer",
}
_AS_PLANNED = frozenset(("", "auto", "safetensors", "runai_streamer"))
"""They read the model's files through the host's memory. Others load other files, or put whole ones on the GPU."""


def packages_for(args: Sequence[str]) -> dict[str, str]:
    """Return the packages that an engine imports for the format in its arguments, each with that argument."""
    load_format, follows = "", False
    for word in args:
        name, equals, value = word.partition("=")
        load_format = word if follows else value if equals and _is_flag(name) else load_format
        follows = not equals and _is_flag(name)
    package = _PACKAGES.get(load_format)
    return {package: f"{FLAG}={load_format}"} if package else {}


def is_as_planned(load_format: str) -> bool:
    """Return whether an engine takes as much memory as the model's files say."""
    return load_format in _AS_PLANNED


def _is_flag(word: str) -> bool:
    return word.replace("_", "-") == FLAG
