"""``longboat down``: end the fleet, and the cluster if it is one that ``up`` started on this machine alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from longboat.cli.shared.cluster_at_hand import cluster_env, connect_quickly
from longboat.cli.shared.fleet_end import end_fleet
from longboat.cli.shared.interrupts import interrupt_deferred
from longboat.cluster.host.record import ClusterRecord, load_record
from longboat.core.errors import ClusterError, LongboatError
from longboat.folders import run_folder

if TYPE_CHECKING:
    from longboat.cli.shared.quick_session import QuickSession
    from longboat.cluster.ray.session import Session

__all__ = ("end_cluster", "ends_with", "run_down")


def run_down() -> None:
    """Run the command. Raises ClusterError where the fleet on a cluster that stays cannot be ended."""
    from longboat.cluster.host.ray_node import stop_node

    local = load_record(run_folder())
    env = cluster_env()
    if env is not None:
        end_cluster(connect_quickly, local, env.get("RAY_ADDRESS", ""), stop_node)
    elif local is not None and local.started_by_up:
        stop_node()
        print("the local cluster did not run; nothing of it is left")
    else:
        print("no fleet was up: this machine belongs to no cluster")


def end_cluster(
    connect: Callable[[], Session | QuickSession],
    local: ClusterRecord | None,
    address: str,
    stop_node: Callable[[], object],
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
        print("warning: keys that were made or revoked in a console may not be kept", file=sys.stderr, flush=True)
    if ends_with(local, address):
        stop_node()
        print("the local cluster is stopped")


def _end_fleet(session: Session | QuickSession) -> bool:
    had_fleet = session.apps.has_fleet()
    if had_fleet:
        with interrupt_deferred():  # half a fleet is of no use, and a lost terminal must not leave one
            _keep_keys(session)
            end_fleet(session)
    return had_fleet


def _keep_keys(session: Session | QuickSession) -> None:
    """Keep the fleet's keys on this machine: some may have been made or revoked in the console."""
    from longboat.cluster.ray.key_changes import keep_keys

    try:
        keep_keys(session)
    except (LongboatError, OSError, KeyError, TypeError, ValueError) as error:  # the fleet ends anyway
        print(f"warning: the fleet's keys are not kept here: {error}", file=sys.stderr, flush=True)


def ends_with(local: ClusterRecord | None, ended: str) -> bool:
    """Return whether this node's cluster is the one at ``ended`` (ADDRESS:PORT): RAY_ADDRESS may lead elsewhere."""
    return local is not None and local.started_by_up and local.gcs_address == ended
