"""Membership: who gets into the endpoint table, and who is told to stop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.cluster.membership import FORGET_S, SILENCE_S, Membership
from longboat.cluster.messages import Announcement
from longboat.core.states import Phase, ReplicaState


def announcement(replica: str, phase: Phase = Phase.READY, slot: int = 0, model: str = "tiny") -> Announcement:
    state = ReplicaState(model=model, replica=replica, generation=1, phase=phase, url=f"http://10.0.0.1/{replica}")
    return Announcement(state=state, slot=slot, api_key="secret")


def replicas(membership: Membership, now_s: float) -> list[str]:
    return [endpoint.replica for endpoint in membership.table(["tiny"], now_s).endpoints]


def test_only_ready_replicas_are_endpoints() -> None:
    membership = Membership()
    membership.hear(announcement("a"), 0.0)
    membership.hear(announcement("b", Phase.LOADING, slot=1), 0.0)
    membership.hear(announcement("c", Phase.DRAINING, slot=2), 0.0)
    assert replicas(membership, 0.0) == ["a"]


def test_a_silent_replica_leaves_the_table_and_comes_back_when_heard() -> None:
    membership = Membership()
    membership.hear(announcement("a"), 0.0)
    assert replicas(membership, SILENCE_S + 0.1) == []
    assert not membership.hear(announcement("a"), SILENCE_S + 1).stop
    assert replicas(membership, SILENCE_S + 1) == ["a"]


def test_a_returning_replica_is_stopped_when_a_newer_one_has_its_slot() -> None:
    membership = Membership()
    membership.hear(announcement("old"), 0.0)
    membership.hear(announcement("new"), 10.0)
    membership.hear(announcement("new"), 19.0)
    assert membership.hear(announcement("old"), 20.0).stop
    membership.hear(announcement("new"), 20.0)
    assert replicas(membership, 20.0) == ["new"]


def test_a_returning_replica_is_never_routed_to_before_the_verdict() -> None:
    membership = Membership()
    membership.hear(announcement("old"), 0.0)
    membership.hear(announcement("new", Phase.STARTING), 10.0)
    membership.hear(announcement("old"), 12.0)
    assert replicas(membership, 12.0) == []


def test_a_returning_replica_serves_on_when_its_substitute_failed() -> None:
    membership = Membership()
    membership.hear(announcement("old"), 0.0)
    membership.hear(announcement("new", Phase.FAILED), 10.0)
    assert not membership.hear(announcement("old"), 11.0).stop
    assert replicas(membership, 11.0) == ["old"]


def test_siblings_that_share_a_slot_for_a_moment_both_live() -> None:
    membership = Membership()
    membership.hear(announcement("a", slot=1), 0.0)
    membership.hear(announcement("b", slot=1), 1.0)
    assert not membership.hear(announcement("a", slot=1), 2.0).stop
    assert replicas(membership, 2.0) == ["a", "b"]


def test_the_version_grows_only_when_the_table_changes() -> None:
    membership = Membership()
    membership.hear(announcement("a"), 0.0)
    first = membership.table(["tiny"], 0.0).version
    membership.hear(announcement("a"), 1.0)
    assert membership.table(["tiny"], 1.0).version == first
    membership.hear(announcement("b", slot=1), 2.0)
    assert membership.table(["tiny"], 2.0).version == first + 1


def test_models_out_of_the_fleet_are_out_of_the_table() -> None:
    membership = Membership()
    membership.hear(announcement("a"), 0.0)
    membership.hear(announcement("x", model="other"), 0.0)
    assert replicas(membership, 0.0) == ["a"]


def test_the_failure_of_a_model_is_kept_until_it_is_ready() -> None:
    membership = Membership()
    membership.hear(announcement("a", Phase.FAILED), 0.0)
    membership.expire(SILENCE_S + 1)
    assert set(membership.failures()) == {"tiny"}
    membership.hear(announcement("b"), 10.0)
    assert membership.failures() == {}


def test_long_gone_replicas_are_forgotten() -> None:
    membership = Membership()
    membership.hear(announcement("a"), 0.0)
    membership.expire(FORGET_S + 1)
    assert membership.states(FORGET_S + 1) == ()


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(Phase), st.integers(0, 2), st.floats(0, 9)), max_size=40))
def test_the_table_holds_each_replica_once_and_only_ready_ones(events: list[tuple[int, Phase, int, float]]) -> None:
    membership, now_s, newest = Membership(), 0.0, dict[str, Phase]()
    for number, phase, slot, pause_s in events:
        now_s += pause_s
        membership.hear(announcement(f"r{number}", phase, slot), now_s)
        newest[f"r{number}"] = phase
    listed = replicas(membership, now_s)
    assert len(listed) == len(set(listed))
    assert all(newest[replica] is Phase.READY for replica in listed)
