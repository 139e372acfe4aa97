"""What planning does otherwise for models that generate nothing: a text is read once, and no token follows."""

from __future__ import annotations

from dataclasses import replace

from longboat.catalog.families.fitness import fitness_for
from longboat.catalog.formats.model_facts import ModelConfig
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import Problem
from longboat.core.tasks import GENERATE
from longboat.core.wanted import WantedModel

__all__ = ("shape_for", "task_problems", "task_reason")


def shape_for(model: WantedModel, shape: ModelShape) -> ModelShape:
    """Return the weights that are loaded for the model's task: without the head that makes tokens."""
    return shape if model.task == GENERATE or shape.head is None else replace(shape, head=None)


def task_problems(model: WantedModel, facts: ModelConfig | None) -> tuple[Problem, ...]:
    """Return why the model's class cannot be served for its task; none without facts or for the fake engine."""
    if facts is None or model.engine == "fake":
        return ()
    found = fitness_for(facts.architecture, model.task, overridden=model.overrides_config)
    return (Problem(where="task", what=found.problem, hint=found.hint),) if found.problem else ()


def task_reason(model: WantedModel, facts: ModelConfig | None) -> str:
    """Return how the model is served for its task; empty where there is nothing to say."""
    if model.task == GENERATE:
        return ""
    found = fitness_for(facts.architecture if facts else "", model.task, overridden=model.overrides_config)
    return found.reason or f"task {model.task}"
