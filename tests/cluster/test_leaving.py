"""How long replicas that are taken out stay, and when their answers move."""

from __future__ import annotations

from longboat.cluster.gang.drain_tracker import MOVE_S, LeaveRules, Leaving, Stay
from longboat.core.states import Phase, ReplicaState, ResumeLevel

RULES = LeaveRules(drain_s=20.0, limit_s=600.0)


def replica(
    name: str, phase: Phase = Phase.READY, revision: str = "1", resume: ResumeLevel = ResumeLevel.CARRIED
) -> ReplicaState:
    return ReplicaState(model="m", replica=name, generation=1, phase=phase, revision=revision, resume=resume)


LEAVING = replica("old", Phase.DRAINING)


def look(leaving: Leaving, now_s: float, *states: ReplicaState) -> Stay:
    return leaving.look(states, lambda _model: RULES, now_s)["old"]


def test_answers_may_end_first_and_move_after_that() -> None:
    leaving = Leaving()
    assert not look(leaving, 0.0, LEAVING, replica("other")).moving
    assert not look(leaving, 19.9, LEAVING, replica("other")).moving
    assert look(leaving, 20.0, LEAVING, replica("other")) == Stay(patience_s=MOVE_S, moving=True)
    assert look(leaving, 20.0 + MOVE_S, LEAVING, replica("other")) == Stay(patience_s=0.0, moving=True)


def test_the_last_of_a_revision_stays_until_the_limit() -> None:
    leaving = Leaving()
    look(leaving, 0.0, LEAVING)
    assert look(leaving, 100.0, LEAVING, replica("new", revision="2")) == Stay(patience_s=500.0, moving=False)
    assert look(leaving, 700.0, LEAVING).patience_s == 0.0


def test_a_replica_that_is_not_ready_takes_over_nothing() -> None:
    leaving = Leaving()
    look(leaving, 0.0, LEAVING)
    assert not look(leaving, 30.0, LEAVING, replica("other", Phase.LOADING)).moving
    assert not look(leaving, 30.0, LEAVING, replica("other", resume=ResumeLevel.NONE)).moving


def test_answers_of_an_engine_that_cannot_resume_do_not_move() -> None:
    leaving = Leaving()
    old = replica("old", Phase.DRAINING, resume=ResumeLevel.NONE)
    look(leaving, 0.0, old, replica("other"))
    assert look(leaving, 30.0, old, replica("other")) == Stay(patience_s=570.0, moving=False)


def test_a_late_sibling_gets_the_answers_and_the_time_for_it() -> None:
    leaving = Leaving()
    look(leaving, 0.0, LEAVING)
    assert look(leaving, 100.0, LEAVING, replica("other")) == Stay(patience_s=MOVE_S, moving=True)


def test_the_last_of_a_revision_is_not_its_own_heir() -> None:
    leaving = Leaving()
    leaving.look([replica("old"), replica("other")], lambda _model: RULES, 0.0)
    for now_s in (0.1, 0.2):
        assert leaving.stay(LEAVING, RULES, now_s).patience_s == RULES.drain_s + MOVE_S - (now_s - 0.1)
    assert leaving.stay(replica("other", Phase.DRAINING), RULES, 0.2).patience_s == RULES.limit_s


def test_only_replicas_that_drain_are_told_anything() -> None:
    assert Leaving().look([replica("a"), replica("b", Phase.GONE)], lambda _model: RULES, 0.0) == {}
