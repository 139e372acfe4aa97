"""Mistakes about tasks that no single model shows: requests that would move to a model of another task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from longboat.core.errors import Problem
from longboat.core.tasks import DOES, Task
from longboat.spec.text.location import Path, show
from longboat.spec.types.fleet import Fleet

__all__ = ("task_problems",)


def task_problems(fleet: Fleet) -> list[Problem]:
    """Return fallbacks, overflows and shares of an alias that lead from a model to one of another task."""
    tasks = {name: model.task for name, model in fleet.served().items()}
    return [
        Problem(
            where=show(where),
            what=f"{other!r} {DOES[tasks[other]]}, and {name!r} {DOES[tasks[name]]}",
            hint=f"name a model with task: {tasks[name]}",
        )
        for where, name, other in _moves(fleet)
        if _differ(name, other, tasks)
    ]


def _differ(name: str, other: str, tasks: Mapping[str, Task]) -> bool:
    return name in tasks and other in tasks and tasks[name] != tasks[other]


def _moves(fleet: Fleet) -> Iterator[tuple[Path, str, str]]:
    """Yield each place that sends the requests of one model to another, with both."""
    gateway = fleet.gateway
    for name, others in gateway.fallbacks.items():
        for index, other in enumerate(others):
            yield ("gateway", "fallbacks", name, index), name, other
    for name, overflow in gateway.overflow.items():
        yield ("gateway", "overflow", name, "to"), name, overflow.to
    for index, alias in enumerate(gateway.aliases):
        for number, pool in enumerate(alias.pools[1:], start=1):
            yield ("gateway", "aliases", index, "pools", number, "model"), alias.pools[0].model, pool.model
