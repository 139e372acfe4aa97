"""Tests of the limits of silence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.health.watchdog import PauseStats

PAUSES = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 50.0), st.floats(0.0, 500.0)), max_size=20)


def test_limits_of_an_unknown_endpoint_are_the_lowest() -> None:
    pace = PauseStats()
    assert pace.silence_limit_s(5.0) == 3.0
    assert pace.silence_limit_s(5.0, headless=True) == 12.0
    assert pace.stall_limit_s(5.0, steps=True, watched=True) == 10.0


def test_engine_that_does_not_step_may_be_at_a_long_prompt() -> None:
    pace = PauseStats()
    assert pace.stall_limit_s(5.0, steps=False, watched=False) == 20.0
    assert pace.stall_limit_s(5.0, steps=False, watched=True) > 30.0


def test_slow_endpoint_is_given_more_time_for_a_while() -> None:
    pace = PauseStats()
    pace.learn(100.0, silence_s=4.0, stall_s=20.0)
    assert pace.silence_limit_s(100.0) == 16.0
    assert pace.stall_limit_s(100.0, steps=True, watched=False) == 200.0
    assert pace.silence_limit_s(160.0) == 8.0
    assert pace.silence_limit_s(400.0) == 3.0


def test_shorter_pause_does_not_lower_the_limit() -> None:
    pace = PauseStats()
    pace.learn(100.0, silence_s=4.0)
    pace.learn(100.0, silence_s=0.1)
    assert pace.silence_limit_s(100.0) == 16.0


@given(PAUSES)
def test_limits_stay_in_bounds_and_above_what_was_seen_a_moment_ago(pauses: list[tuple[float, float, float]]) -> None:
    pace, now_s = PauseStats(), 0.0
    for after_s, silence_s, stall_s in pauses:
        now_s += after_s
        pace.learn(now_s, silence_s=silence_s, stall_s=stall_s)
        assert 3.0 <= pace.silence_limit_s(now_s) <= 60.0
        assert pace.silence_limit_s(now_s) > min(silence_s, 59.0)
        for steps in (True, False):
            limit_s = pace.stall_limit_s(now_s, steps=steps, watched=True)
            assert 10.0 <= limit_s <= 600.0
            assert limit_s > stall_s
