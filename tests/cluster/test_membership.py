"""Membership: who gets into the endpoint table, and who is told to stop."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from longboat.cluster.members.membership import FORGET_S, ORDERS_KEPT, SILENCE_S, Membership
from longboat.cluster.members.succession import Member, Succession
from longboat.cluster.protocol.messages import Announcement
from longboat.core.states import Phase, ReplicaState, ResumeLevel


def announcement(
    replica: str,
    phase: Phase = Phase.READY,
    slot: int = 0,
    model: str = "tiny",
    generation: int = 1,
    digest: str = "",
) -> Announcement:
    url = f"http://10.0.0.1/{replica}"
    state = ReplicaState(model=model, replica=replica, generation=generation, phase=phase, url=url, digest=digest)
    return Announcement(state=state, slot=slot, api_key="secret")


OLD = announcement("old", generation=100)
NEW = announcement("new", generation=200)


def hear_in_turn(membership: Membership, start_s: float, *announcements: Announcement) -> list[bool]:
    """One announcement every half second; returns which were answered with stop."""
    return [membership.hear(said, start_s + 0.5 * number).stop for number, said in enumerate(announcements)]


def replicas(membership: Membership, now_s: float) -> list[str]:
    """Those that take new requests."""
    return [endpoint.replica for endpoint in membership.table(["tiny"], now_s).endpoints if endpoint.ready]


def test_only_ready_replicas_are_endpoints() -> None:
    membership = Membership()
    membership.hear(announcement("a"), 0.0)
    membership.hear(announcement("b", Phase.LOADING, slot=1), 0.0)
    membership.hear(announcement("c", Phase.DRAINING, slot=2), 0.0)
    assert replicas(membership, 0.0) == ["a"]


def test_a_draining_replica_keeps_what_it_has_until_that_is_to_move() -> None:
    membership = Membership()
    membership.hear(announcement("a", Phase.DRAINING), 0.0)
    (endpoint,) = membership.table(["tiny"], 0.0).endpoints
    assert (endpoint.ready, endpoint.moving) == (False, False)
    (endpoint,) = membership.table(["tiny"], 0.0, moving=["a"]).endpoints
    assert endpoint.moving
    membership.hear(announcement("a", Phase.GONE), 1.0)
    assert membership.table(["tiny"], 1.0).endpoints == ()


def test_an_endpoint_says_how_it_resumes_and_where_it_is_heard() -> None:
    membership = Membership()
    said = announcement("a")
    membership.hear(dataclasses.replace(said, beats="10.0.0.1:7", context_tokens=4096), 0.0)
    (before,) = membership.table(["tiny"], 0.0).endpoints
    proved = dataclasses.replace(said.state, resume=ResumeLevel.CARRIED, revision="abc")
    membership.hear(dataclasses.replace(said, state=proved, beats="10.0.0.1:7"), 1.0)
    table = membership.table(["tiny"], 1.0)
    (after,) = table.endpoints
    assert (before.context_tokens, after.context_tokens) == (4096, 0), "the newest announcement counts"
    assert (before.resume, before.beats) == (ResumeLevel.NONE, "10.0.0.1:7")
    assert (after.resume, after.revision, after.key) == (ResumeLevel.CARRIED, "abc", before.key)
    assert table.version == 2, "gateways are told of a proof that came late"


def test_replicas_of_another_make_are_no_rivals_for_a_slot() -> None:
    membership = Membership()
    old, new = announcement("old", digest="1"), announcement("new", digest="2", generation=2)
    membership.hear(old, 0.0)
    assert hear_in_turn(membership, 6.0, old, new, old, new, old) == [False] * 5


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


def test_a_replica_that_returns_after_it_was_forgotten_is_still_the_old_one() -> None:
    membership = Membership()
    membership.hear(announcement("old"), 0.0)
    membership.hear(announcement("new"), 10.0)
    membership.expire(FORGET_S + 1)
    assert not membership.hear(announcement("new"), 100.0).stop
    assert membership.hear(announcement("old"), 101.0).stop
    assert replicas(membership, 101.0) == ["new"]
    assert not membership.hear(announcement("new"), 102.0).stop


def test_a_forgotten_replica_serves_again_when_nobody_took_its_slot() -> None:
    membership = Membership()
    membership.hear(announcement("a"), 0.0)
    membership.expire(FORGET_S + 1)
    assert not membership.hear(announcement("a"), 100.0).stop
    assert replicas(membership, 100.0) == ["a"]


def test_only_the_newest_forgotten_orders_are_kept() -> None:
    membership = Membership()
    for number in range(ORDERS_KEPT + 1):
        membership.hear(announcement(f"r{number}", slot=number), float(number))
        membership.expire(float(number))
    end_s = ORDERS_KEPT + FORGET_S + 10
    membership.expire(end_s)
    membership.hear(announcement("new", slot=0), end_s)
    membership.hear(announcement("new2", slot=1), end_s)
    assert not membership.hear(announcement("r0", slot=0), end_s + 1).stop
    assert membership.hear(announcement("r1", slot=1), end_s + 1).stop


def test_an_older_generation_heard_second_by_a_new_controller_is_stopped_and_never_routed_to() -> None:
    membership, stops = Membership(), list[bool]()
    for number, said in enumerate([NEW, OLD, NEW, OLD, NEW]):
        stops.append(membership.hear(said, float(number)).stop)
        assert replicas(membership, float(number)) == ["new"]
    assert stops == [False, False, False, True, False]


def test_an_older_generation_heard_first_by_a_new_controller_is_stopped() -> None:
    membership = Membership()
    assert hear_in_turn(membership, 0.0, OLD, NEW) == [False, False]
    assert replicas(membership, 0.5) == ["new"]
    assert hear_in_turn(membership, 1.0, OLD, NEW, OLD, NEW) == [False, False, True, False]


@given(st.integers(1, 4), st.permutations([OLD, NEW]), st.sampled_from([20.0, 100.0]))
def test_the_newer_generation_is_never_stopped_after_both_fell_silent(
    heard: int, back: list[Announcement], back_s: float
) -> None:
    membership = Membership()
    hear_in_turn(membership, 0.0, *[NEW, OLD, NEW, OLD][: heard + 1])
    membership.expire(back_s - 1)
    answers = hear_in_turn(membership, back_s, *back, *back)
    said = list(zip([*back, *back], answers, strict=True))
    assert not any(stop for who, stop in said if who is NEW)
    assert any(stop for who, stop in said if who is OLD)
    assert replicas(membership, back_s + 2) == ["new"]


def test_a_substitute_whose_clock_is_behind_takes_the_place_of_a_dead_replica() -> None:
    membership = Membership()
    hear_in_turn(membership, 0.0, NEW, NEW)
    for now_s in (2.0, 3.0, 4.0, 5.0, 6.0):
        assert not membership.hear(OLD, now_s).stop
    assert replicas(membership, 6.0) == ["old"]
    assert membership.hear(NEW, 8.0).stop
    assert not membership.hear(OLD, 8.5).stop
    assert replicas(membership, 8.5) == ["old"]


def test_siblings_that_swap_slots_before_a_new_controller_both_live() -> None:
    membership = Membership()
    elder, younger = announcement("elder", slot=1, generation=100), announcement("younger", slot=1, generation=200)
    moved = announcement("elder", slot=0, generation=100)
    assert hear_in_turn(membership, 0.0, younger, elder, younger, moved, younger, moved) == [False] * 6
    assert sorted(replicas(membership, 3.0)) == ["elder", "younger"]


def test_siblings_known_to_be_well_swap_slots_for_as_long_as_they_like() -> None:
    membership = Membership()
    elder, younger = announcement("elder", slot=0, generation=100), announcement("younger", slot=1, generation=200)
    moved = announcement("elder", slot=1, generation=100)
    hear_in_turn(membership, 0.0, elder, younger, elder, younger)
    assert hear_in_turn(membership, 2.0, moved, younger, moved, younger, moved) == [False] * 5
    assert sorted(replicas(membership, 4.0)) == ["elder", "younger"]


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


def test_replicas_of_one_slot_are_told_apart_without_a_fleet() -> None:
    succession = Succession()
    older, newer = (Member(said, 0.0, succession.next_order()) for said in (OLD, NEW))
    for member in (older, newer):
        succession.place(member, member.announcement)
    assert succession.is_held_back(older, 0.0) and not succession.is_held_back(newer, 0.0)
    assert not succession.is_superseded(older, 0.0), "it was never silent, so the two may have swapped slots"
    older.was_lost = True
    assert succession.is_superseded(older, 0.0)
    succession.leave(newer)
    assert not succession.is_superseded(older, 0.0)
