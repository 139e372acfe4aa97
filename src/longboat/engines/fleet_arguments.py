"""What is wrong with the extra arguments that a fleet gives its engines."""

from __future__ import annotations

from dataclasses import replace

from longboat.core.errors import Problem
from longboat.engines.vllm.flags import check_extra_args
from longboat.spec.types.fleet import Fleet

__all__ = ("argument_problems",)


def argument_problems(fleet: Fleet) -> list[Problem]:
    """Return the problems of all models' arguments, each with its place in the file."""
    return [
        replace(problem, where=f"models[{index}].engine.args{problem.where}")
        for index, model in enumerate(fleet.models)
        if model.engine.kind == "vllm"
        for problem in check_extra_args(model.engine.args)
    ]
