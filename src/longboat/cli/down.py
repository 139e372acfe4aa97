"""``longboat down``: end the fleet, and the cluster if it is one that ``up`` started on this machine alone."""

from __future__ import annotations

from longboat.cli.cluster_at_hand import connect
from longboat.cluster.node_record import ClusterRecord, local_cluster
from longboat.folders import run_folder

__all__ = ("ends_with", "run_down")


def run_down() -> None:
    """Raises ClusterError when there is no cluster."""
    from longboat.cli.up import end_fleet
    from longboat.cluster.ray_node import stop_node

    with connect() as session:
        had_fleet = session.has_fleet()
        if had_fleet:
            end_fleet(session)
    print("the fleet is down" if had_fleet else "no fleet was up")
    if ends_with(local_cluster(run_folder()), session.gcs_address):
        stop_node()
        print("the local cluster is stopped")


def ends_with(local: ClusterRecord | None, ended: str) -> bool:
    """Whether this node's cluster ends with the fleet on ``ended`` (ADDRESS:PORT): RAY_ADDRESS may lead elsewhere."""
    return local is not None and local.started_by_up and local.gcs_address == ended
