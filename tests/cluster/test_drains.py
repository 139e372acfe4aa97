"""What a person has taken out."""

from __future__ import annotations

from longboat.cluster.fleet.drains import Drains, read_drains, values_with_drains
from longboat.core.states import Phase, RankState, ReplicaState


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


def test_drains_are_kept_as_they_are() -> None:
    drains = Drains(replicas=frozenset({"r"}), nodes=frozenset({"n"}), gateways=frozenset({"g"}))
    assert read_drains(values_with_drains({"fleet": "t"}, drains)) == drains
    assert read_drains({}) == Drains()
