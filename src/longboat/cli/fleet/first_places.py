"""Lets the first replicas of new models go to nodes that have their weights."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from longboat.cluster.counts.preferred_nodes import (
    NodeFacts,
    Preference,
    all_are_placed,
    preference,
    without_replicas,
)
from longboat.cluster.fleet.deployed import bundles_in_force, controller_values, num_placed
from longboat.cluster.members.drains import read_drains
from longboat.core.plan import GangShape
from longboat.planner.fleet.place import bundles
from longboat.spec.types.fleet import ModelSpec
from longboat.spec.types.source import is_fetched

if TYPE_CHECKING:
    from longboat.cli.fleet.applied import Applied
    from longboat.cluster.ray.session import Session

__all__ = ("first_places", "steered", "without_each_other")


def first_places(session: Session, applied: Applied, deployed: Collection[str]) -> dict[str, Preference]:
    """Return model → where its first replicas are to go, of models that are not deployed yet."""
    plan = applied.plan
    new = [m for m in applied.fleet.models if m.name not in deployed and m.num_replicas and is_fetched(m.source)]
    if plan is None or not any(plan.weights.values()) or not new:
        return {}
    report, nodes = session.try_report(), session.nodes()
    apps = session.apps.all()
    taken, drained = bundles_in_force(apps), read_drains(controller_values(apps)).nodes
    if report is not None and not all_are_placed(report.replicas):
        return {}
    left = without_replicas(nodes, report.replicas if report is not None else (), taken)
    facts = [
        NodeFacts(
            node_id=node.node_id,
            name=node.hostname or node.address,
            left=left[node.node_id],
            labels=node.labels,
            weights=plan.weights.get(node.node_id, frozenset()),
        )
        for node in nodes
        if node.node_id not in drained
    ]
    found = {m.name: preference(_arguments(m, applied.shapes[m.name]), facts, m.num_replicas) for m in new}
    return without_each_other({name: wanted for name, wanted in found.items() if wanted.reason})


def without_each_other(wanted: Mapping[str, Preference]) -> dict[str, Preference]:
    """Return the preferences without room that one model would hold of nodes which another one prefers."""
    preferred = {node for one in wanted.values() for node in one.preferred}
    return {
        name: Preference(
            num_gangs=one.num_gangs,
            held={node: shares for node, shares in one.held.items() if node not in preferred},
            preferred=one.preferred,
            reason=one.reason,
        )
        for name, one in wanted.items()
    }


@contextlib.contextmanager
def steered(session: Session, wanted: Mapping[str, Preference], shapes: Mapping[str, GangShape]) -> Iterator[None]:
    """Hold room of other nodes while the fleet is put and its new replicas find their places, some seconds at most."""
    from longboat.cluster.ray.held_room import HeldRoom

    goals = {name: one.num_gangs for name, one in wanted.items() if one.held}
    rooms: list[HeldRoom] = []
    try:
        rooms.extend(HeldRoom(wanted[name].held, bundles(shapes[name])[0]) for name in goals)
        yield
        for room in rooms[:1]:  # the others are released with it
            room.release_when(lambda: _are_placed(session, goals))
    finally:
        for room in rooms:
            room.release()


def _are_placed(session: Session, goals: Mapping[str, int]) -> bool:
    apps = session.apps.all()
    return all(num_placed(apps, name) >= goal for name, goal in goals.items())


def _arguments(spec: ModelSpec, shape: GangShape) -> dict[str, Any]:
    """Return what a preference needs of the model's application."""
    return {
        "model": {"source": spec.source, "engine": {"kind": spec.engine.kind}},
        "bundles": bundles(shape),
        "labels": dict(spec.placement.labels),
        "stages": list(shape.stages),
    }
