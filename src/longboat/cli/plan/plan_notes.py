"""What a reader of a model's numbers must know to understand them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from longboat.builtin import is_builtin
from longboat.catalog.names import normal_name
from longboat.catalog.shape.model_shape import ModelShape

__all__ = ("is_distilled", "name_notes", "notes_of")

MIB = 1024**2
SIZE = re.compile(r"\db")  # "8b" in a name


def name_notes(written: str, shape: ModelShape) -> Iterator[str]:
    """Yield which model a name stands for, where the name is another: ``qwen``, or ``deepseek-r1:70b`` of Ollama."""
    if "/" in written or os.path.exists(written) or is_builtin(written):
        return
    told, found = normal_name(written), normal_name(shape.name)
    if found in told or (told in found and SIZE.search(told)):
        return
    yield f"{written} is planned as {shape.name}{_distilled(written, shape)}"


def is_distilled(written: str, shape: ModelShape) -> bool:
    """Return whether a name of DeepSeek-R1 stands for another model that was trained on its answers, as in Ollama."""
    return normal_name(written).startswith("deepseekr1") and "deepseek" not in shape.name.lower()


def _distilled(written: str, shape: ModelShape) -> str:
    if not is_distilled(written, shape):
        return ""
    return ", the model that DeepSeek-R1 was distilled into: DeepSeek-R1 itself is deepseek-r1:671b"


def notes_of(shape: ModelShape, kv_bits: int) -> Iterator[str]:
    """Yield sentences about windows, indexers and states: what ``kv_bytes_per_token`` leaves out or includes."""
    dtype_bytes = kv_bits / 8
    caches = [layer.cache for layer in shape.layers]
    windows = [cache for cache in caches if cache.kind == "window"]
    growing = [cache for cache in caches if cache.bytes_per_token(dtype_bytes)]
    if windows:
        widest = max(cache.window_tokens for cache in windows)
        within = shape.window_bytes_per_token(dtype_bytes)
        yield (
            f"{len(windows)} of {len(caches)} layers have a window of {widest} tokens: until it is full a token adds "
            f"{within:.0f} bytes besides kv_bytes_per_token"
        )
    if keys := sum(cache.index_bytes / max(1, cache.ratio) for cache in growing):
        yield f"kv_bytes_per_token includes {keys:.0f} bytes of the indexers' keys"
    if compressed := sum(cache.kind == "compressed" for cache in caches):
        yield f"{compressed} layers keep a window of tokens, and older ones compressed"
    states = [cache for cache in caches if cache.state_bytes and cache.kind != "compressed"]
    if states:
        size = sum(cache.state_bytes for cache in states) / MIB
        yield f"{len(states)} of {len(caches)} layers keep a state: {size:.1f} MiB a sequence, however long it is"
    if not growing and not windows and states:
        yield "a state-space model: it has no KV cache, and kv_bytes_per_token is 0"
