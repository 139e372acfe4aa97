"""Takes down what ``longboat up`` started: the whole fleet, or the models that it added."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.deployment import current_policy, put_fleet
from longboat.cluster.fleet.deployed import controller_values
from longboat.cluster.ray.session import Session
from longboat.core.errors import ClusterError
from longboat.spec.files.dump import dump_fleet

__all__ = ("end_fleet", "take_down")


def take_down(session: Session, applied: Applied, console: Console) -> None:
    """Undo what this ``up`` did: the fleet it started, or the models it added to a running one."""
    if applied.started_fleet:
        console.print("taking the fleet down …")
        end_fleet(session)
    elif applied.added:
        console.print(f"taking down {', '.join(applied.added)} …")
        _remove_models(session, applied)


def end_fleet(session: Session) -> None:
    """End models first, so that gateways answer to the last, then gateways, daemons and the controller.

    A controller that does not answer is ended anyway. Raises ClusterError when Serve does not answer.
    """
    others = session.apps.foreign()
    trouble = _end_by_controller(session, others)
    try:
        session.rest.put({"proxy_location": "Disabled", "applications": others})
        session.apps.wait_gone()
    finally:
        if trouble:  # only now, since a controller that lives would start daemons again
            _end_daemons(session, trouble)


def _end_by_controller(session: Session, others: list[dict[str, Any]]) -> str:
    """End the fleet in order; return why that failed, empty where it did not."""
    try:
        session.apps.check_controller()
        session.apps.end_models(others)
        session.end_nodes()
    except ClusterError as error:
        return error.message
    return ""


def _end_daemons(session: Session, trouble: str) -> None:
    silent = ", ".join(node_id[:8] for node_id in session.end_daemons())
    left = f"; no answer from nodes {silent}: longboat node stop there ends what is left" if silent else ""
    print(f"warning: the fleet was ended without its controller ({trouble}){left}", file=sys.stderr, flush=True)


def _remove_models(session: Session, applied: Applied) -> None:
    kept = tuple(model for model in applied.fleet.models if model.name not in applied.added)
    if not kept:
        end_fleet(session)
        return
    fleet = applied.fleet.model_copy(update={"models": kept})
    left = Applied(fleet=fleet, text=dump_fleet(fleet), planned=applied.planned)
    policy, told = current_policy(session, fleet, applied.admins), controller_values(session.apps.all())
    put_fleet(session, left, policy, applied.shapes, session.apps.deployed_models(), told)
