"""Says which parts of a model's engine the twin does not play, so that its numbers are read for what they are."""

from __future__ import annotations

from collections.abc import Iterator

from longboat.planner.memory.split_shape import Split
from longboat.spec.types.fleet import ModelSpec

__all__ = ("left_out",)

_ENGINES = {
    "llama.cpp": "each slot of llama.cpp keeps the cache of its own last request, where the twin has one cache for all",
    "sglang": "SGLang plans its steps by rules of its own, where the twin plans as vLLM does",
}


def left_out(spec: ModelSpec, split: Split | None) -> Iterator[str]:
    """Yield a sentence for each part. split: of one replica; None where the times of steps are given"""
    if spec.engine.kind in _ENGINES:
        yield _ENGINES[spec.engine.kind]
    if split is not None and split.data > 1:
        yield (
            f"each of the {split.data} data parts has a cache and steps of its own, where the twin has one cache and "
            "one step for all: parts that are not equally busy are slower"
        )
    if spec.speculative is not None:
        yield "speculative decoding is left out: a step gives one token of each request"
