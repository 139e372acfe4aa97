"""What a person has taken out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from longboat.cli.fleet.drain import _node_named
from longboat.cluster.members.drains import Drains, read_drains, values_with_drains
from longboat.core.errors import UserInputError
from longboat.core.states import Phase, RankState, ReplicaState, ResumeLevel
from longboat.core.topology import Node


def replica(*nodes: str, phase: Phase = Phase.READY) -> ReplicaState:
    ranks = tuple(RankState(node_rank=rank, node_id=node, address="") for rank, node in enumerate(nodes))
    return ReplicaState(model="m", replica="r", generation=1, phase=phase, ranks=ranks)


def test_a_replica_that_was_named_leaves_once() -> None:
    drains = Drains(replicas=frozenset({"r"}))
    assert drains.leaves(replica("n"))
    assert not drains.leaves(replica("n", phase=Phase.DRAINING))


def test_of_a_node_those_leave_that_serve_does_not_know_of() -> None:
    drains = Drains(nodes=frozenset({"n"}))
    assert drains.leaves(replica("other", "n"))
    assert not drains.leaves(replica("n", "other")), "Serve starts another one first"
    assert not drains.leaves(replica("other"))


def test_the_gateway_of_a_node_is_drained_with_it_or_alone() -> None:
    drains = Drains(nodes=frozenset({"n"}), gateways=frozenset({"g"}))
    assert [drains.is_drained(node) for node in ("n", "g", "x")] == [True, True, False]


def test_streams_that_move_at_once_do_not_wait_for_a_successor() -> None:
    drains = Drains(nodes=frozenset({"n"}), at_once=frozenset({"n"}))
    leaving = replace(replica("n"), revision="1")
    other = replace(replica("other"), replica="o", revision="1", resume=ResumeLevel.CARRIED)
    assert drains.moves_at_once(leaving) and not drains.moves_at_once(other)
    assert drains.leaves(leaving, [other])
    assert not replace(drains, at_once=frozenset()).leaves(leaving, [other])
    for unable in (
        replace(other, revision="2"),
        replace(other, phase=Phase.LOADING),
        replace(other, resume=ResumeLevel.NONE),
        replace(other, ranks=leaving.ranks),
    ):
        assert not drains.leaves(leaving, [unable])


def test_drains_are_kept_as_they_are() -> None:
    some = frozenset({"r"})
    drains = Drains(replicas=some, nodes=frozenset({"n"}), gateways=frozenset({"g"}), at_once=some)
    assert read_drains(values_with_drains({"fleet": "t"}, drains)) == drains
    assert read_drains({}) == Drains()


def test_a_name_of_two_nodes_drains_neither() -> None:
    """Machines that were made from one image; a node that has just been started again is listed twice for seconds."""
    nodes = [Node(node_id=f"n{number}", address=f"10.0.0.{number}", hostname="gpu") for number in (1, 2)]
    nodes.append(Node(node_id="n3", address="10.0.0.2", hostname="gpu"))
    session: Any = SimpleNamespace(nodes=lambda: nodes)
    with pytest.raises(UserInputError, match="3 nodes are called 'gpu'") as caught:
        _node_named(session, "gpu")
    assert "10.0.0.1 or 10.0.0.2" in caught.value.hint
    assert _node_named(session, "n3") is nodes[2]
    assert _node_named(session, "10.0.0.2").address == "10.0.0.2"
