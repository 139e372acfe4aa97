"""Drains a node in Ray."""

from __future__ import annotations

import subprocess
import sys

from longboat.core.errors import ClusterError

__all__ = ("drain_node",)

TIMEOUT_S = 60.0
REASON = "DRAIN_NODE_REASON_PREEMPTION"
"""The only reason for which Ray drains a node that runs something."""


def drain_node(gcs_address: str, node_id: str) -> None:
    """Let Ray place nothing more on a node; Serve then starts the replicas of that node elsewhere.

    Raises ClusterError when Ray refuses.
    """
    argv = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", gcs_address]
    argv += ["--node-id", node_id, "--reason", REASON, "--reason-message", "longboat drain"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ClusterError("Ray does not answer", hint="longboat status") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise ClusterError(f"Ray refused to drain the node: {last}", hint="longboat status shows the nodes")
