"""Reports of a fleet, with only what a test is about."""

from __future__ import annotations

from typing import Any

from longboat.cluster.protocol.messages import Announcement, FleetReport, GatewayReport
from longboat.core.states import Phase, RankState, ReplicaState

__all__ = ("failure", "gateway", "replica", "report")

DOCUMENT = "the fleet"


def gateway(node: str = "n1", **given: Any) -> GatewayReport:
    """A gateway that works, on a node that has an address."""
    known = {"address": "10.0.0.1", "hostname": node, "url": "http://10.0.0.1:8000", "pid": 7, "table_version": 1}
    return GatewayReport(node_id=node, **{**known, **({"pid": None} if "problem" in given else {}), **given})


def replica(model: str = "a", name: str = "r1", phase: Phase = Phase.READY, **given: Any) -> ReplicaState:
    return ReplicaState(**{"model": model, "replica": name, "generation": 1, "phase": phase, "digest": "d", **given})


def failure(model: str = "a", name: str = "r1", *, log_path: str = "", detail: str = "it broke") -> Announcement:
    """An announcement of a replica that failed, with one rank on host one."""
    rank = RankState(node_rank=0, node_id="n1", address="10.0.0.1", hostname="one", log_path=log_path)
    state = replica(model, name, Phase.FAILED, detail=detail, ranks=(rank,))
    return Announcement(state=state, slot=0, log_tail=("last words",))


def report(
    *replicas: ReplicaState,
    gateways: tuple[GatewayReport, ...] = (),
    failures: tuple[Announcement, ...] = (),
    document: str = DOCUMENT,
    at_s: float = 0.0,
) -> FleetReport:
    return FleetReport(
        fleet="t",
        document=document,
        at_s=at_s,
        replicas=replicas,
        gateways=gateways,
        failures={failed.state.model: failed for failed in failures},
        table_version=1,
    )
