"""What a person has taken out."""

from __future__ import annotations

from dataclasses import replace

from longboat.cluster.members.drains import Drains, read_drains, values_with_drains
from longboat.core.states import Phase, RankState, ReplicaState, ResumeLevel


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
