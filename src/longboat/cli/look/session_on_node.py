"""How ``longboat status`` reaches the fleet from a node: through its daemon, which comes back within seconds.

Ray would take seconds of work to load, just where the parts of the node need the processors to start again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from longboat.cli import STATUS_S
from longboat.cli.look.answer_limit import Wait
from longboat.cli.shared.cluster_at_hand import cluster_env, connect, connect_quickly
from longboat.cli.shared.quick_session import QuickSession
from longboat.cluster.fleet.applications import ServeApplications
from longboat.cluster.fleet.serve_rest import DashboardAwayError, ServeRest
from longboat.cluster.host.cluster_token import cluster_token
from longboat.cluster.host.record import load_record
from longboat.cluster.node.door_client import door_path
from longboat.core.errors import ClusterError, no_fleet
from longboat.folders import run_folder
from longboat.user import user_home

if TYPE_CHECKING:
    from longboat.cluster.ray.session import Session

__all__ = ("session_on_node",)

AGAIN_S, DASHBOARD_S = 0.2, 3.0
PAST_S = 1.0
"""The limit ends the process by itself on a node. A machine that was none when the command began asks Ray after it."""

LATE_S = 3.0
"""A controller that was heard before that is late: it orders each node once a second, in large fleets every few."""


def session_on_node(wait: Wait) -> Session | QuickSession:
    """Connect to the cluster at hand, and note in ``wait`` what does not answer.

    Raises ClusterError where there is no cluster, or it has no fleet.
    """
    if os.environ.get("RAY_ADDRESS") or wait.limit_s > STATUS_S:  # there is time for Ray
        return connect_quickly()
    while (env := cluster_env()) is not None:
        try:
            session = QuickSession(run_folder(), env, connect)
        except ClusterError as error:
            if not _is_fleet_here(wait, env, error):
                break
        else:
            wait.seen = _silence(session.heard_s)
            return session
        if wait.ends_within(AGAIN_S) or wait.left_s < -PAST_S:
            break
    return connect()


def _is_fleet_here(wait: Wait, env: dict[str, str], error: ClusterError) -> bool:
    """Return whether a fleet is up whose daemon is to come back on this node; False: only Ray can tell.

    Raises ClusterError where the cluster has no fleet.
    """
    wait.seen = error.message
    record = load_record(run_folder())
    if record is None:  # of a cluster that Longboat did not start; nothing limits the wait
        return False
    if not record.dashboard:  # a daemon that ends in order takes its door with it; one that is killed does not
        return wait.left_s > wait.limit_s / 2 and door_path(run_folder()).exists()
    token = cluster_token({**os.environ, **env}, user_home())
    try:
        if not ServeApplications(ServeRest(f"http://{record.dashboard}", token, DASHBOARD_S)).has_fleet():
            raise no_fleet()
    except DashboardAwayError as away:
        wait.seen = away.message
    return True


def _silence(heard_s: float | None) -> str:
    """Say since when the node has not heard the fleet's controller; empty where it has."""
    if heard_s is None or heard_s < LATE_S:
        return ""
    return f"this node has not heard the fleet's controller for {heard_s:.0f} s"
