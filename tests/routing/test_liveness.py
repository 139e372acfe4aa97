"""Tests of heartbeats: a loss is found in time, a working gang is left alone, a late listener blames no gang."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.health.liveness import (
    QUIT,
    Beat,
    Health,
    Life,
    Liveness,
    LivenessLimits,
    RankBeat,
    Silence,
)

BEAT_EVERY_S = 0.25
LOOK_EVERY_S = 0.1
LIMITS = LivenessLimits()

phases = st.floats(0.0, BEAT_EVERY_S, exclude_max=True)


def gang(
    life: Life = Life.RUNS, *, cpu_s: float = 0.0, steps: int | None = None, running: int | None = None, **rank: float
) -> Beat:
    """Make a gang of two ranks, the second as given."""
    first = RankBeat(node_rank=0, life=Life.RUNS, cpu_s=cpu_s)
    second = RankBeat(node_rank=1, life=life, **rank)
    return Beat(ranks=(first, second), steps=steps, num_running=running)


def times(begin_s: float, end_s: float, every_s: float) -> Iterator[float]:
    at_s = begin_s
    while at_s < end_s:
        yield at_s
        at_s += every_s


def watched(
    tell: Callable[[float], Beat | None], seconds: float, phase_s: float = 0.0
) -> tuple[Liveness, float | None]:
    """Watch a gang that beats by ``tell(at_s)`` (None: nothing arrives); return when it was first taken for lost."""
    liveness = Liveness(LIMITS, 0.0)
    events = [(at_s, True) for at_s in times(phase_s, seconds, BEAT_EVERY_S)]
    events += [(at_s, False) for at_s in times(0.0, seconds, LOOK_EVERY_S)]
    for at_s, is_beat in sorted(events):
        if is_beat:
            if (beat := tell(at_s)) is not None:
                liveness.hear(beat, at_s)
        elif liveness.judge(at_s).health is Health.LOST:
            return liveness, at_s
    return liveness, None


@given(cut_s=st.floats(1.0, 3.0), phase_s=phases)
def test_a_cut_link_is_found_within_two_seconds(cut_s: float, phase_s: float) -> None:
    _, found_s = watched(lambda at_s: gang() if at_s < cut_s else None, 8.0, phase_s)
    assert found_s is not None
    assert cut_s < found_s <= cut_s + 2.0


@given(stop_s=st.floats(1.0, 3.0), phase_s=phases)
def test_a_stopped_rank_is_found_within_three_seconds(stop_s: float, phase_s: float) -> None:
    _, found_s = watched(lambda at_s: gang(Life.STOPPED if at_s >= stop_s else Life.RUNS), 8.0, phase_s)
    assert found_s is not None
    assert stop_s < found_s <= stop_s + 3.0


@given(gone_s=st.floats(1.0, 3.0), phase_s=phases)
def test_a_rank_whose_node_vanished_is_found_within_three_seconds(gone_s: float, phase_s: float) -> None:
    tell = lambda at_s: gang(silent_s=(away := max(0.0, at_s - gone_s)), unreached_s=away)  # noqa: E731
    _, found_s = watched(tell, 8.0, phase_s)
    assert found_s is not None
    assert gone_s < found_s <= gone_s + 3.0


@given(gone_s=st.floats(1.0, 3.0), phase_s=phases)
def test_a_lost_link_between_ranks_is_found_within_three_seconds(gone_s: float, phase_s: float) -> None:
    liveness, found_s = watched(lambda at_s: linked(max(0.0, at_s - gone_s)), 8.0, phase_s)
    assert found_s is not None
    assert gone_s < found_s <= gone_s + 3.0
    judgement = liveness.judge(found_s)
    assert (judgement.cause, judgement.node_rank) == ("cut", 1)
    assert "its connection with 10.0.0.1 has had no acknowledgement for" in judgement.detail


def linked(unacked_s: float) -> Beat:
    first = RankBeat(node_rank=0, life=Life.RUNS)
    second = RankBeat(node_rank=1, life=Life.RUNS, unacked_s=unacked_s, unacked_by="10.0.0.1" if unacked_s else "")
    return Beat(ranks=(first, second))


def test_a_link_that_comes_back_makes_the_gang_alive() -> None:
    liveness = Liveness(LIMITS, 0.0)
    liveness.hear(linked(2.5), 0.1)
    assert liveness.judge(0.1).health is Health.LOST
    liveness.hear(linked(0.0), 0.35)
    assert liveness.judge(0.35).health is Health.ALIVE


def test_an_ended_rank_is_lost_at_once_and_named() -> None:
    liveness = Liveness(LIMITS, 0.0)
    liveness.hear(gang(Life.ENDED), 0.1)
    judgement = liveness.judge(0.1)
    assert (judgement.health, judgement.cause, judgement.node_rank) == (Health.LOST, "ended", 1)


@pytest.mark.parametrize(("crashed", "cause"), [(True, "ended"), (False, QUIT)])
def test_a_gang_that_was_asked_to_end_has_a_cause_of_its_own(crashed: bool, cause: str) -> None:
    """The other ranks of a gang are asked to end when one crashed."""
    liveness = Liveness(LIMITS, 0.0)
    ranks = tuple(RankBeat(node_rank=at, life=Life.ENDED, on_request=not (crashed and at == 1)) for at in (0, 1))
    liveness.hear(Beat(ranks=ranks), 0.1)
    assert liveness.judge(0.1).cause == cause


def test_a_process_that_was_stopped_for_a_moment_is_not_lost() -> None:
    _, found_s = watched(lambda at_s: gang(Life.STOPPED if 1.0 <= at_s < 1.6 else Life.RUNS), 5.0)
    assert found_s is None


@pytest.mark.parametrize("cpu_rate", [0.1, 1.0, 8.0])
def test_a_prefill_of_two_minutes_is_no_hang(cpu_rate: float) -> None:
    _, found_s = watched(lambda at_s: gang(cpu_s=at_s * cpu_rate, steps=7, running=1), 120.0)
    assert found_s is None


def test_steps_without_cpu_time_are_no_hang() -> None:
    _, found_s = watched(lambda at_s: gang(cpu_s=3.0, steps=int(at_s / 4), running=1), 120.0)
    assert found_s is None


@pytest.mark.parametrize("running", [0, None])
def test_an_idle_gang_does_not_hang(running: int | None) -> None:
    _, found_s = watched(lambda at_s: gang(cpu_s=at_s * 0.001, steps=7, running=running), 60.0)
    assert found_s is None


def test_a_rank_whose_agent_is_silent_may_work_unseen() -> None:
    _, found_s = watched(lambda at_s: gang(cpu_s=3.0, steps=7, running=1, silent_s=at_s), 60.0)
    assert found_s is None


def test_requests_without_steps_and_cpu_time_are_a_hang() -> None:
    _, found_s = watched(lambda at_s: gang(cpu_s=at_s * 0.02, steps=7, running=1), 120.0)
    assert found_s is not None
    assert found_s > LIMITS.hang_s


@pytest.mark.parametrize("pause_s", [40.0, 600.0])
def test_a_machine_that_was_suspended_with_requests_running_has_no_hang(pause_s: float) -> None:
    """Engine and listener stood still together: the first beats after it show the steps and CPU time of before."""
    stop_s = 10.0
    liveness = Liveness(LIMITS, 0.0)
    for tick in range(120):
        at_s = tick * 0.25 if tick * 0.25 < stop_s else tick * 0.25 + pause_s
        liveness.hear(gang(cpu_s=3.0, steps=min(tick, 38) if tick < 48 else tick, running=1), at_s)
        assert liveness.judge(at_s).health is Health.ALIVE


def test_a_silent_door_on_a_node_that_answers_is_only_doubtful() -> None:
    liveness = Liveness(LIMITS, 0.0)
    liveness.hear(gang(), 0.0)
    for at_s in times(0.0, 20.0, LOOK_EVERY_S):
        liveness.reach(at_s)
        assert liveness.judge(at_s).health is not Health.LOST
    assert liveness.judge(20.0).health is Health.DOUBTFUL


def test_a_gang_never_heard_is_taken_for_alive() -> None:
    liveness = Liveness(LIMITS, 0.0)
    assert all(liveness.judge(at_s).health is Health.ALIVE for at_s in times(0.0, 20.0, LOOK_EVERY_S))


def test_a_gang_that_is_heard_again_is_alive_again() -> None:
    liveness, found_s = watched(lambda at_s: gang() if at_s < 1.0 else None, 8.0)
    assert found_s is not None
    liveness.hear(gang(), found_s + 1.0)
    assert liveness.judge(found_s + 1.0).health is Health.ALIVE


@given(st.lists(st.floats(0.01, 30.0), min_size=1, max_size=40))
def test_a_listeners_own_pauses_make_nobody_silent(pauses_s: list[float]) -> None:
    """The listener looks after each pause before it reads what came meanwhile."""
    silence, now_s = Silence(0.0), 0.0
    for pause_s in pauses_s:
        now_s += pause_s
        assert silence.seconds(now_s) <= max(LIMITS.unreached_s, 0.5)
        silence.hear(now_s)


@given(st.lists(st.floats(0.01, 0.4), min_size=1, max_size=60))
def test_silence_is_counted_whole_while_the_listener_runs(steps_s: list[float]) -> None:
    silence, now_s = Silence(0.0), 0.0
    for step_s in steps_s:
        now_s += step_s
        assert silence.seconds(now_s) == pytest.approx(now_s)
