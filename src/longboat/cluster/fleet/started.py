"""Models that an operator started without the fleet file, as the controller's values keep them. Pure.

The text of the running fleet has them; the marks here say that no file of a user does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from longboat.core.errors import Problem, UserInputError
from longboat.spec.files.dump import dump_model, dump_price
from longboat.spec.files.load import load_fleet
from longboat.spec.types.fleet import Fleet

__all__ = ("STARTED", "StartedModel", "asked_fleet", "check_started", "read_started", "started_lines", "with_started")

STARTED = "started"
"""Name of the marks among the controller's values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedModel:
    """The mark of a model that an operator started."""

    by: str
    since_s: float = 0.0  # Unix seconds

    def __str__(self) -> str:
        return f"started by {self.by} on {datetime.fromtimestamp(self.since_s, UTC):%Y-%m-%d %H:%M} UTC"


def read_started(values: Mapping[str, Any]) -> dict[str, StartedModel]:
    """Read model → its mark from the controller's values."""
    return {model: StartedModel(**entry) for model, entry in values.get(STARTED, {}).items()}


def with_started(values: Mapping[str, Any], marks: Mapping[str, StartedModel]) -> dict[str, Any]:
    """Return the controller's values with these marks besides those that they have."""
    added = {model: dataclasses.asdict(mark) for model, mark in marks.items()}
    return {**values, STARTED: {**values.get(STARTED, {}), **added}} if added else dict(values)


def asked_fleet(values: Mapping[str, Any]) -> Fleet:
    """Return the fleet as it was asked for: what the file left to decide is ``auto`` in it."""
    text = values.get("planned", {}).get("asked") or values["text"]
    return load_fleet(str(text), "the running fleet as it was asked for")


def check_started(values: Mapping[str, Any], wanted: Fleet) -> None:
    """Raise UserInputError where the file lacks models that operators started: it would end them."""
    if problems := [_lacking(model, mark, values) for model, mark in _left_out(values, wanted).items()]:
        first = problems[0]
        message = str(first) if len(problems) == 1 else f"the file lacks {len(problems)} models that run"
        raise UserInputError(message, hint=first.hint, problems=tuple(problems))


def started_lines(values: Mapping[str, Any], wanted: Fleet) -> list[str]:
    """Say of each started model what the file makes of it."""
    left_out = _left_out(values, wanted)
    return [
        f"~ {model}: {mark}; " + ("the file does not have it" if model in left_out else "from now on the file has it")
        for model, mark in read_started(values).items()
    ]


def _left_out(values: Mapping[str, Any], wanted: Fleet) -> Mapping[str, StartedModel]:
    marks = read_started(values)
    return MappingProxyType({model: mark for model, mark in marks.items() if model not in wanted.names})


def _lacking(model: str, mark: StartedModel, values: Mapping[str, Any]) -> Problem:
    fleet = asked_fleet(values)
    spec, price = fleet.model_named(model), fleet.gateway.prices.get(model)
    entry = f"write - {dump_model(spec)} to keep it" if spec is not None else "write it to keep it"
    if price is not None:
        entry = f"{entry}, and below gateway.prices {dump_price(model, price)}"
    what = f"the file lacks {model}, which was {mark}"
    return Problem(where="models", what=what, hint=f"{entry}; --end-started ends it")
