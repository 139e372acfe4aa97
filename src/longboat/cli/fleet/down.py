"""``longboat down``: end the fleet, and the cluster if it is one that ``up`` started on this machine alone."""

from __future__ import annotations

import sys
from collections.abc import Callable

from longboat.cli.shared.cluster_at_hand import cluster_env, connect
from longboat.cluster.host.record import ClusterRecord, local_cluster
from longboat.cluster.ray.session import Session
from longboat.core.errors import ClusterError
from longboat.folders import run_folder

__all__ = ("end_cluster", "ends_with", "run_down")


def run_down() -> None:
    """Run the command. Raises ClusterError without a cluster, or where the fleet on one that stays cannot be ended."""
    from longboat.cluster.host.ray_node import stop_node

    address = (cluster_env() or {}).get("RAY_ADDRESS", "")
    end_cluster(connect, local_cluster(run_folder()), address, stop_node)


def end_cluster(
    connect: Callable[[], Session], local: ClusterRecord | None, address: str, stop_node: Callable[[], object]
) -> None:
    """End the fleet, then ``local`` if it is what was at ``address``: its end takes with it what the first left."""
    try:
        with connect() as session:
            address = session.gcs_address
            print("the fleet is down" if _end_fleet(session) else "no fleet was up", flush=True)
    except ClusterError as error:
        if not ends_with(local, address):
            raise
        print(f"warning: {error}", file=sys.stderr, flush=True)
    if ends_with(local, address):
        stop_node()
        print("the local cluster is stopped")


def _end_fleet(session: Session) -> bool:
    from longboat.cli.fleet.teardown import end_fleet

    had_fleet = session.apps.has_fleet()
    if had_fleet:
        end_fleet(session)
    return had_fleet


def ends_with(local: ClusterRecord | None, ended: str) -> bool:
    """Return whether this node's cluster is the one at ``ended`` (ADDRESS:PORT): RAY_ADDRESS may lead elsewhere."""
    return local is not None and local.started_by_up and local.gcs_address == ended
