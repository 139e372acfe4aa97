"""Replicas that are to end and never had a place: Serve would wait for their end as long as for that of an engine."""

from __future__ import annotations

from longboat.cluster.fleet.deployed import Applications
from longboat.cluster.protocol.names import MODEL_APP_PREFIX

__all__ = ("end_actors", "unplaced_actors")

_SERVE = "serve"
"""The namespace of Serve's actors."""


def unplaced_actors(apps: Applications) -> tuple[str, ...]:
    """Return the actors of replicas that Serve stops and that no node ever had room for."""
    deployments = [
        deployment
        for name, app in apps.items()
        if name.startswith(MODEL_APP_PREFIX)
        for deployment in (app.get("deployments") or {}).values()
    ]
    replicas = [replica for deployment in deployments for replica in deployment.get("replicas") or ()]
    return tuple(
        str(replica["actor_name"])
        for replica in replicas
        if replica.get("state") == "STOPPING" and not replica.get("node_id") and replica.get("actor_name")
    )


def end_actors(names: tuple[str, ...]) -> None:
    """End actors that wait for a place; those that are gone meanwhile are left out. Runs where Ray is connected."""
    import ray

    for name in names:
        try:
            ray.kill(ray.get_actor(name, namespace=_SERVE))
        except ValueError:
            continue
