"""Changes the number of a model's replicas by hand, without the fleet file."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from longboat.cluster.counts.by_hand import HOLDS, Hold, checked_hold, read_holds, values_with_hold
from longboat.cluster.fleet.adapters import running_fleet
from longboat.cluster.fleet.deployed import controller_values, document_with, running_values
from longboat.cluster.node.write_turn import until_written
from longboat.core.errors import UserInputError
from longboat.spec.scaling import scaled_models

if TYPE_CHECKING:
    from longboat.cluster.fleet.applications import FleetSession

__all__ = ("Verb", "change_hold")

Verb = Literal["scale", "pause", "resume"]


def change_hold(session: FleetSession, model: str, verb: Verb, *, asked: int | None = None, by: str) -> Hold:
    """Change what the controller holds of a model, and return the order that then holds.

    It is read back, and written again where another command's document won.
    asked: replicas for ``scale``; None: the fleet file decides again; by: the operator, for ``status``
    Raises UserInputError where the model cannot have that, ClusterError where no fleet is up.
    """

    def attempt() -> Hold | None:
        with session.writing():
            apps = session.apps.all()
            values = running_values(apps)
            models = {entry.name: entry for entry in scaled_models(running_fleet(values))}
            before = read_holds(values).get(model, Hold())
            hold = replace(_changed(before, model, verb, asked), by=by, since_s=round(time.time(), 3))
            wanted = values_with_hold(values, model, checked_hold(models, model, hold))
            session.rest.put(document_with(apps, wanted))
            is_written = controller_values(session.apps.all()).get(HOLDS) == wanted[HOLDS]
            return read_holds(wanted).get(model, Hold()) if is_written else None

    return until_written(attempt)


def _changed(hold: Hold, model: str, verb: Verb, asked: int | None) -> Hold:
    if verb == "scale":
        return replace(hold, asked=asked)
    if verb == "resume" and not hold.paused:
        raise UserInputError(f"{model} is not paused", hint="longboat status shows how many replicas it has")
    return replace(hold, paused=verb == "pause")
