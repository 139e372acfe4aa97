"""Mistakes about tasks that no single model shows: requests that would move to a model of another task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from longboat.core.errors import Problem
from longboat.core.tasks import DOES, GENERATE, POOLING_TASKS, Task
from longboat.spec.checks.adapter_names import adapter_places
from longboat.spec.text.location import Path, show
from longboat.spec.types.fleet import ModelSpec
from longboat.spec.types.gateway_parts import GatewayParts

__all__ = ("task_problems",)


def task_problems(models: Sequence[object], names: Sequence[str], parts: GatewayParts) -> Iterator[Problem]:
    """Yield fallbacks, overflows and shares of an alias that lead from a model to one of another task.

    models: the fleet's own, as plain values; those with another mistake too. names: of the models
    """
    tasks = _tasks(models, names)
    for where, name, other in _moves(parts):
        if name in tasks and other in tasks and tasks[name] != tasks[other]:
            what = f"{other!r} {DOES[tasks[other]]}, and {name!r} {DOES[tasks[name]]}"
            yield Problem(where=show(where), what=what, hint=f"name a model with task: {tasks[name]}")


def _tasks(models: Sequence[object], names: Sequence[str]) -> Mapping[str, Task]:
    """Return the task behind each name that the fleet serves, where it can be read."""
    given = [_task(model) for model in models]
    told = dict(zip(names, given, strict=True)) | {name: given[index] for index, name in adapter_places(models)}
    return {name: task for name, task in told.items() if task is not None}


def _task(model: object) -> Task | None:
    """Return the task of a model; None where it cannot be read, or where an unknown field may be meant as it."""
    if not isinstance(model, dict) or ("task" not in model and not model.keys() <= ModelSpec.model_fields.keys()):
        return None
    task = model.get("task", GENERATE)
    return next((known for known in (GENERATE, *POOLING_TASKS) if known == task), None)


def _moves(parts: GatewayParts) -> Iterator[tuple[Path, str, str]]:
    """Yield each place that sends the requests of one model to another, with both."""
    for name, others in parts.fallbacks.items():
        for index, other in enumerate(others):
            yield ("gateway", "fallbacks", name, index), name, other
    for name, overflow in parts.overflow.items():
        yield ("gateway", "overflow", name, "to"), name, overflow.to
    for index, alias in parts.aliases:
        for number, pool in enumerate(alias.pools[1:], start=1):
            yield ("gateway", "aliases", index, "pools", number, "model"), alias.pools[0].model, pool.model
