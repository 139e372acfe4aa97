"""``longboat drain``: take a replica, a node or a gateway out of use without losing an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from longboat.cli.shared.cluster_at_hand import connect, report_of
from longboat.cluster.fleet.deployed import controller_values, document_with
from longboat.cluster.members.drains import Drains, read_drains, values_with_drains
from longboat.cluster.node.write_turn import until_written
from longboat.cluster.ray.drain import drain_node
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.states import Phase

if TYPE_CHECKING:
    from longboat.cluster.protocol.messages import FleetReport
    from longboat.cluster.ray.session import Session
    from longboat.core.topology import Node

__all__ = ("run_drain",)

POLL_S = 0.3
BACK_HINT = "longboat node stop and longboat node start on that machine make it a node again"


def run_drain(kind: str, name: str, *, undo: bool, timeout_s: float, move: bool = False) -> None:
    """Take ``name`` out (or back in), and wait until nothing runs there any more.

    kind: ``replica``, ``node`` or ``gateway``; move: its streams go to other replicas at once
    Raises UserInputError when there is none of that name, ClusterError when it still runs after ``timeout_s``.
    """
    _check_words(kind, name, move=move)
    with connect() as session:
        report = report_of(session)
        match kind:
            case "replica":
                is_empty = _replica(session, _replica_named(report, name), undo, move=move)
            case "node":
                is_empty = _node(session, _node_named(session, name), undo, move=move)
            case _:
                is_empty = _gateway(session, _node_named(session, name), undo)
        if undo:
            print(f"{kind} {name} is in use again")
            return
        _wait(session, kind, name, is_empty, timeout_s)


def _check_words(kind: str, name: str, *, move: bool) -> None:
    """Raise UserInputError where no fleet could have what the words name."""
    if kind not in ("replica", "node", "gateway"):
        hint = f"write replica, node or gateway before the name: longboat drain replica {name}"
        raise UserInputError(f"{kind!r} cannot be drained", hint=hint)
    if kind == "replica" and not name.rpartition("/")[2]:
        raise UserInputError(f"{name!r} is not a replica", hint="write MODEL/REPLICA, as longboat status shows it")
    if kind == "gateway" and move:
        hint = "longboat drain node HOST --move moves the streams of the replicas on it"
        raise UserInputError("the requests of a gateway cannot move to another one", hint=hint)


def _replica(session: Session, replica: str, undo: bool, *, move: bool) -> Callable[[FleetReport], bool]:
    if undo:
        raise UserInputError("the drain of a replica cannot be undone", hint="another takes its place")
    own = {replica}
    _change(session, lambda drains: _at_once(replace(drains, replicas=drains.replicas | own), own, move))
    return lambda report: all(s.replica != replica or _is_over(s.phase) for s in report.replicas)


def _gateway(session: Session, node: Node, undo: bool) -> Callable[[FleetReport], bool]:
    own = {node.node_id}
    _change(session, lambda drains: replace(drains, gateways=drains.gateways - own if undo else drains.gateways | own))
    return lambda report: all(g.node_id != node.node_id or (g.draining and not g.in_flight) for g in report.gateways)


def _at_once(drains: Drains, names: set[str], move: bool) -> Drains:
    return replace(drains, at_once=drains.at_once | names) if move else drains


def _node(session: Session, node: Node, undo: bool, *, move: bool) -> Callable[[FleetReport], bool]:
    """Replace the node's replicas by others elsewhere; its gateway takes no new requests."""
    if undo:
        raise UserInputError("the drain of a node cannot be undone", hint=BACK_HINT)
    if node.is_head:
        hint = "longboat drain replica takes out a replica on it, longboat drain gateway its gateway"
        raise UserInputError("the head's node cannot be drained: the cluster depends on it", hint=hint)
    drain_node(session.gcs_address, node.node_id)
    own = {node.node_id}
    _change(session, lambda drains: _at_once(replace(drains, nodes=drains.nodes | own), own, move))
    return lambda report: (
        all(
            _is_over(state.phase) or all(rank.node_id != node.node_id for rank in state.ranks)
            for state in report.replicas
        )
        and all(g.node_id != node.node_id or not g.in_flight for g in report.gateways)
    )


def _change(session: Session, change: Callable[[Drains], Drains]) -> None:
    """Tell the controller what is taken out; it keeps that when it restarts.

    What was written is read back, and written again where another command's document won.
    """

    def attempt() -> Drains | None:
        with session.writing():
            apps = session.apps.all()
            values = controller_values(apps)
            drains = change(read_drains(values))
            session.rest.put(document_with(apps, values_with_drains(values, drains)))
            return drains if read_drains(controller_values(session.apps.all())) == drains else None

    until_written(attempt)


def _wait(session: Session, kind: str, name: str, is_empty: Callable[[FleetReport], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        report = session.try_report()
        if report is not None and not report.partial and is_empty(report):
            print(f"{kind} {name} is drained")
            return
        time.sleep(POLL_S)
    raise ClusterError(
        f"{kind} {name} is still in use after {timeout_s:.0f} s",
        hint="the drain continues: longboat status shows it; is there room for a replica elsewhere?",
    )


def _replica_named(report: FleetReport, name: str) -> str:
    """name: MODEL/REPLICA, where the end of the replica's name is enough, as ``status`` shows it."""
    model, _, tail = name.rpartition("/")
    ready = [s for s in report.replicas if s.phase is Phase.READY]
    found = [s.replica for s in ready if tail and s.replica.endswith(tail) and model in ("", s.model)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{state.model}/{state.replica[-8:]}" for state in ready) or "none"
    raise UserInputError(f"{name!r} matches {len(found)} ready replicas, not one", hint=f"ready replicas: {names}")


def _node_named(session: Session, name: str) -> Node:
    nodes = session.nodes()
    found = [node for node in nodes if name in (node.hostname, node.address, node.node_id)]
    if len(addresses := sorted({node.address for node in found})) > 1:
        hint = f"write the address: {' or '.join(addresses)}"
        raise UserInputError(f"{len(found)} nodes are called {name!r}", hint=hint)
    if found:
        return found[0]
    names = ", ".join(f"{node.hostname} ({node.address})" for node in nodes)
    raise UserInputError(f"there is no node {name!r}", hint=f"nodes: {names}")


def _is_over(phase: Phase) -> bool:
    return phase in (Phase.FAILED, Phase.GONE)
