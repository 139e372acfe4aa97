"""``longboat down``: end the fleet, and the cluster if it is one that ``up`` started on this machine alone."""

from __future__ import annotations

from longboat.cli.cluster_at_hand import connect
from longboat.folders import run_folder

__all__ = ("run_down",)


def run_down() -> None:
    """Raises ClusterError when there is no cluster."""
    from longboat.cli.up import end_fleet
    from longboat.cluster.ray_node import local_cluster, stop_node

    with connect() as session:
        had_fleet = session.has_fleet()
        if had_fleet:
            end_fleet(session)
    print("the fleet is down" if had_fleet else "no fleet was up")
    record = local_cluster(run_folder())
    if record is not None and record.started_by_up:
        stop_node()
        print("the local cluster is stopped")
