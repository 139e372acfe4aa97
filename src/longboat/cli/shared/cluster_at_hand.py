"""Which cluster a command talks to: the one in RAY_ADDRESS, else the one that this machine belongs to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from longboat.cluster.host.cluster_token import TOKEN_VARIABLES
from longboat.cluster.ray.session import Session
from longboat.core.errors import ClusterError
from longboat.folders import run_folder

__all__ = ("cluster_env", "connect", "word_of_ray")

RAY_WORD = Path("/tmp/ray/ray_current_cluster")  # noqa: S108
"""Where ``ray start`` writes the address of the cluster it started or joined, when no other folder was chosen."""


def cluster_env() -> dict[str, str] | None:
    """Variables that lead to the cluster; None where this node belongs to none."""
    if address := os.environ.get("RAY_ADDRESS"):
        return _with_token(address)
    from longboat.cluster.host.ray_node import connect_env, local_cluster

    if record := local_cluster(run_folder()):
        return connect_env(record)
    return _with_token(address) if (address := word_of_ray(RAY_WORD, os.getuid())) else None


def _with_token(address: str) -> dict[str, str]:
    return {"RAY_ADDRESS": address} | {name: os.environ[name] for name in TOKEN_VARIABLES if name in os.environ}


def word_of_ray(word: Path, uid: int) -> str:
    """Return the address that ``ray start`` wrote down on this machine; empty where nothing listens there.

    Only the word of user ``uid`` counts: code runs on the cluster it leads to, and anyone may write below /tmp.
    """
    try:
        if any(path.lstat().st_uid != uid for path in (word, word.parent)):
            return ""
        address = word.read_text().strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=1.0):
            return address
    except (OSError, ValueError):
        return ""


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
