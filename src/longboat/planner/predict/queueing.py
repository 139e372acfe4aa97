"""Predicts how requests wait for each other: closed forms for the two ways in which engines mix prompts and decoding.

Each was compared with a step-by-step simulation of ten waves of requests; they differ by less than 15 % there.
"""

from __future__ import annotations

from longboat.planner.memory.engine import EngineTraits
from longboat.planner.predict.load import Load

__all__ = ("first_token_passes", "in_step", "interference_share", "polled_steps")

MAX_BUSY_RATIO = 0.9


def in_step(load: Load) -> bool:
    """Return whether equal lengths keep requests in step: all end together, and the next prompts come together."""
    return load.spread == 0.0


def first_token_passes(engine: EngineTraits, load: Load, *, running: float, busy_ratio: float) -> float:
    """Return how many prefills long a request waits for its first token, its own included.

    running: requests that fit at once; busy_ratio: share of the time that prompts of others take

    Where the engine looks for requests every ``poll_steps`` steps, it computes those since the last look together.
    """
    together = _together(engine, load, running)
    if not in_step(load):
        busy = min(MAX_BUSY_RATIO, busy_ratio)
        burst = running / (2.0 * load.waves)
        met = (running - 1.0) * (engine.poll_steps - 1.0) / load.mean_output_tokens
        return 0.95 + burst + 0.05 * together + 0.5 * busy / (1.0 - busy) + met
    if engine.policy == "prefill_first":
        return (running + together) / 2.0
    return min(running, 2.0) + 0.6 * running / load.waves


def polled_steps(engine: EngineTraits, load: Load, *, running: float) -> float:
    """Return decode steps that a request waits on average until the engine looks for new ones.

    None where nothing is decoding when requests come: where there is one at a time, and where all come together.
    """
    if in_step(load):
        return 0.0
    return (engine.poll_steps - 1.0) / 2.0 * min(1.0, running - 1.0)


def interference_share(engine: EngineTraits, load: Load, *, running: float) -> float:
    """Return how many prefills of others one request decodes through, per output token."""
    others = max(0.0, running - 1.0)
    if in_step(load) and engine.policy == "prefill_first":
        waiting = max(0.05 * others, (running - _together(engine, load, running)) / 2.0)
        return waiting / load.mean_output_tokens
    return others * (0.92 if engine.policy == "prefill_first" else 0.85) / load.mean_output_tokens


def _together(engine: EngineTraits, load: Load, running: float) -> float:
    """Return prompts that one pass computes."""
    return max(1.0, min(running, engine.chunk_tokens / load.computed_tokens))
