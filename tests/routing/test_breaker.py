"""Tests that a failed endpoint is avoided, and tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.health.breaker import Breaker

FAILED, USED, SUCCEEDED = "failed", "used", "succeeded"
EVENTS = st.lists(st.tuples(st.sampled_from((FAILED, USED, SUCCEEDED)), st.floats(0.0, 20.0)), max_size=40)


def opened(times: int) -> Breaker:
    """Return a breaker whose first failure was at 0 s, with ``times`` failed trials after it, 100 s apart."""
    breaker = Breaker(first_s=1.0, longest_s=30.0)
    breaker.failed(0.0)
    for number in range(times):
        breaker.used(100.0 * (number + 1))
        breaker.failed(100.0 * (number + 1))
    return breaker


def test_breaker_without_failures_avoids_nothing() -> None:
    breaker = Breaker()
    breaker.used(1.0)
    assert not breaker.avoids(1.0)
    assert breaker.closed


def test_many_failures_at_one_time_count_once() -> None:
    breaker = Breaker(first_s=1.0)
    for number in range(100):
        breaker.failed(0.001 * number)
    assert breaker.avoids(0.5)
    assert not breaker.avoids(1.2)


def test_half_open_breaker_lets_one_trial_through() -> None:
    breaker = opened(0)
    assert not breaker.avoids(1.5)
    breaker.used(1.5)
    assert breaker.avoids(1.6)


def test_trial_that_nobody_judges_is_followed_by_another() -> None:
    breaker = opened(0)
    breaker.used(1.5)
    assert not breaker.avoids(2.6)


def test_each_failed_trial_doubles_the_pause_up_to_the_longest() -> None:
    pauses = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    for times, pause_s in enumerate(pauses):
        breaker, since_s = opened(times), 100.0 * times
        assert breaker.avoids(since_s + pause_s - 0.01)
        assert not breaker.avoids(since_s + pause_s)


@given(EVENTS)
def test_success_closes_whatever_came_before(events: list[tuple[str, float]]) -> None:
    breaker, now_s = Breaker(), 0.0
    for name, after_s in events:
        now_s += after_s
        if name == SUCCEEDED:
            breaker.succeeded()
            assert breaker.closed and not breaker.avoids(now_s)
        else:
            getattr(breaker, name)(now_s)
    breaker.succeeded()
    assert not breaker.avoids(now_s)


@given(EVENTS)
def test_nothing_is_avoided_for_longer_than_the_longest_pause(events: list[tuple[str, float]]) -> None:
    breaker, now_s = Breaker(first_s=1.0, longest_s=30.0), 0.0
    for name, after_s in events:
        now_s += after_s
        breaker.succeeded() if name == SUCCEEDED else getattr(breaker, name)(now_s)
        assert not breaker.avoids(now_s + 30.0)
