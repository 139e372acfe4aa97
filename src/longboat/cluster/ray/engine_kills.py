"""Kills the engine of one replica, so that people see how its responses go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from longboat.cluster.fleet.adapters import running_fleet
from longboat.cluster.protocol.names import NAMESPACE, daemon_name
from longboat.core.errors import ClusterError, UserInputError

if TYPE_CHECKING:
    from longboat.cluster.protocol.messages import FleetReport
    from longboat.core.states import RankState

__all__ = ("kill_engine",)

_NODE_S = 40.0
"""More than a node takes to find out that a process does not end."""


class Reporting(Protocol):
    """The part of the controller's session that says what runs."""

    def try_report(self) -> FleetReport | None: ...


def kill_engine(session: Reporting, replica: str) -> dict[str, Any]:
    """SIGKILL a replica's first rank on its node; return the node and the number of processes.

    Raises UserInputError where the fleet is not a demo fleet or has no such engine, ClusterError where its node
    does not answer.
    """
    import ray

    model, rank = _first_rank(session, replica)
    try:
        daemon = ray.get_actor(daemon_name(rank.node_id), namespace=NAMESPACE)
        num = ray.get(daemon.kill_rank.remote(model, replica, rank.node_rank), timeout=_NODE_S)
    except ray.exceptions.RayTaskError as error:
        raise ClusterError(f"the engine of {replica} was not killed: {error.cause}") from error
    except (ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(f"node {rank.hostname} does not answer ({type(error).__name__})") from error
    if not num:
        raise UserInputError(
            f"the engine of {replica} has ended already", hint="longboat status shows what replaces it"
        )
    return {"model": model, "replica": replica, "hostname": rank.hostname, "processes": num}


def _first_rank(session: Reporting, replica: str) -> tuple[str, RankState]:
    report = session.try_report()
    if report is None:
        raise ClusterError("the controller is busy", hint="try again in a moment")
    if not running_fleet({"text": report.document}).gateway.demo:
        raise UserInputError("this fleet is not a demo", hint="write gateway: {demo: true} into the fleet file")
    found = next((row for row in report.replicas if row.replica == replica), None)
    if found is None or not found.ranks:
        raise UserInputError(f"there is no running replica {replica!r}", hint="longboat status lists the replicas")
    return found.model, found.ranks[0]
