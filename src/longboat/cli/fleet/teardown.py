"""Takes down what ``longboat up`` started: the whole fleet, or the models that it added."""

from __future__ import annotations

from rich.console import Console

from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.deployment import current_policy, put_fleet
from longboat.cli.shared.fleet_end import end_fleet
from longboat.cluster.ray.session import Session
from longboat.spec.files.dump import dump_fleet

__all__ = ("take_down",)


def take_down(session: Session, applied: Applied, console: Console) -> None:
    """Undo what this ``up`` did: the fleet it started, or the models it added to a running one."""
    if applied.started_fleet:
        console.print("taking the fleet down …")
        end_fleet(session)
    elif applied.added:
        console.print(f"taking down {', '.join(applied.added)} …")
        _remove_models(session, applied)


def _remove_models(session: Session, applied: Applied) -> None:
    kept = tuple(model for model in applied.fleet.models if model.name not in applied.added)
    if not kept:
        end_fleet(session)
        return
    fleet = applied.fleet.model_copy(update={"models": kept})
    left = Applied(fleet=fleet, text=dump_fleet(fleet), planned=applied.planned)
    policy = current_policy(session, fleet, applied.admins)
    put_fleet(session, left, policy, applied.shapes, session.apps.deployed_models())
