"""Takes down what ``longboat up`` started: the whole fleet, or the models that it added."""

from __future__ import annotations

from rich.console import Console

from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.model_changes import remove_models
from longboat.cli.shared.fleet_end import end_fleet
from longboat.cluster.fleet.adapters import running_fleet
from longboat.cluster.fleet.deployed import controller_values
from longboat.cluster.ray.session import Session

__all__ = ("take_down",)


def take_down(session: Session, applied: Applied, console: Console) -> None:
    """Undo what this ``up`` did: the fleet it started, or the models it added to a running one."""
    if applied.started_fleet:
        console.print("taking the fleet down …")
        end_fleet(session)
    elif applied.added:
        console.print(f"taking down {', '.join(applied.added)} …")
        told = controller_values(session.apps.all())
        if told and {*running_fleet(told).names} <= {*applied.added}:
            end_fleet(session)
        else:
            remove_models(session, applied.added, applied.shapes)
