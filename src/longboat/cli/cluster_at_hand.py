"""Which cluster a command talks to: the one in RAY_ADDRESS, else the one this node belongs to."""

from __future__ import annotations

import os

from longboat.cluster.session import Session
from longboat.core.errors import ClusterError
from longboat.folders import run_folder

__all__ = ("cluster_env", "connect")


def cluster_env() -> dict[str, str] | None:
    """Variables that lead to the cluster; None where this node belongs to none."""
    if address := os.environ.get("RAY_ADDRESS"):
        keep = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
        return {"RAY_ADDRESS": address} | {name: os.environ[name] for name in keep if name in os.environ}
    from longboat.cluster.ray_node import connect_env, local_cluster

    record = local_cluster(run_folder())
    return connect_env(record) if record else None


def connect() -> Session:
    """Connect to the cluster at hand.

    Raises ClusterError when there is none.
    """
    env = cluster_env()
    if env is None:
        raise ClusterError(
            "this machine belongs to no cluster",
            hint="longboat up FILE starts one here; longboat node start --join ADDRESS joins one",
        )
    return Session(env)
