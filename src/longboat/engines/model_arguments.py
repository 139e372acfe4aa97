"""The extra arguments of a model's engine: those that the file lists, and those of its other fields."""

from __future__ import annotations

from longboat.engines.registry import adapter_for
from longboat.spec.types.fleet import ModelSpec

__all__ = ("arguments_of",)


def arguments_of(spec: ModelSpec) -> tuple[str, ...]:
    """Return everything that follows Longboat's own arguments on the engine's command line."""
    if spec.speculative is None:
        return spec.engine.args
    told = spec.speculative
    found = adapter_for(spec.engine.kind).speculative_arguments(told.method, told.tokens, told.model, told.lookup)
    return (*spec.engine.args, *found)
