"""``longboat check``: everything about a fleet file that can be known without a cluster."""

from __future__ import annotations

from longboat.builtin import describe, is_builtin
from longboat.cli.fleet.target import read_target
from longboat.core.errors import Problem, UserInputError
from longboat.engines.fleet_checks import engine_problems
from longboat.spec.types.fleet import Fleet

__all__ = ("run_check",)


def run_check(target: str) -> None:
    """Print what the file describes. Raises UserInputError with every mistake."""
    reading = read_target(target)
    more = [*_unknown_sources(reading.sound), *engine_problems(reading.sound)] if reading.sound else []
    if reading.fleet is None or more:
        raise reading.refusal(reading.placed_in_file(more))
    names = ", ".join(reading.fleet.names)
    print(f"{target}: no mistakes; fleet {reading.fleet.name} with {names}")


def _unknown_sources(fleet: Fleet) -> list[Problem]:
    """Return a problem for each built-in model that does not exist; other sources are for the nodes to look at."""
    problems = []
    for index, model in enumerate(fleet.models):
        try:
            if is_builtin(model.source):
                describe(model.source)
        except UserInputError as error:
            problems.append(Problem(where=f"models[{index}].source", what=error.message, hint=error.hint))
    return problems
