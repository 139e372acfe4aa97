"""Replicas that are to end and never had a place: Serve would wait for their end as long as for that of an engine."""

from __future__ import annotations

from longboat.cluster.fleet.deployed import Applications
from longboat.cluster.protocol.names import MODEL_APP_PREFIX

__all__ = ("end_unplaced",)

_SERVE = "serve"
"""The namespace of Serve's actors."""
_ACTOR = "SERVE_REPLICA::"
"""What the names of replicas' actors begin with; their application's name follows, then ``#``."""


def end_unplaced(apps: Applications) -> int:
    """End replicas that are to end and that no node ever had room for. Runs where Ray is connected.

    apps: as Serve lists them; returns how many replicas there were
    """
    models = {name: app for name, app in apps.items() if name.startswith(MODEL_APP_PREFIX)}
    ending = tuple(f"{_ACTOR}{name}#" for name, app in models.items() if app.get("status") == "DELETING")
    names = _stopped(models)
    if ending:  # Serve lists no replicas of an application that it deletes
        names |= {name for name in _waiting_actors() if name.startswith(ending)}
    _end(names)
    return len(names)


def _stopped(models: Applications) -> set[str]:
    deployments = [one for app in models.values() for one in (app.get("deployments") or {}).values()]
    replicas = [replica for deployment in deployments for replica in deployment.get("replicas") or ()]
    return {
        str(replica["actor_name"])
        for replica in replicas
        if replica.get("state") == "STOPPING" and not replica.get("node_id") and replica.get("actor_name")
    }


def _waiting_actors() -> set[str]:
    """Return the names of actors that wait for a node, by the head's table."""
    from ray._private.state import actors

    return {str(actor["Name"]) for actor in actors(actor_state_name="PENDING_CREATION").values()}


def _end(names: set[str]) -> None:
    """End actors; those that are gone meanwhile are left out."""
    import ray

    for name in names:
        try:
            ray.kill(ray.get_actor(name, namespace=_SERVE))
        except ValueError:
            continue
