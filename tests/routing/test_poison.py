"""Tests of the blame for an engine's death."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.health.poison import Admitted, PoisonList, request_to_blame

PRESENT = st.lists(
    st.builds(Admitted, request=st.integers(), tokens=st.integers(0, 10), since_s=st.floats(0.0, 30.0)),
    unique_by=lambda admitted: admitted.request,
)


def test_request_that_was_new_alone_is_blamed() -> None:
    old = [Admitted(n, 100, 5.0) for n in range(10)]
    assert request_to_blame([*old, Admitted("new", 0, 0.1)]) == "new"
    assert request_to_blame([*old, Admitted("new", 1, 0.5)]) == "new"


def test_nobody_is_blamed_where_two_are_new_or_none() -> None:
    assert request_to_blame([Admitted("a", 0, 0.1), Admitted("b", 1, 0.1)]) is None
    assert request_to_blame([Admitted("a", 100, 9.0)]) is None
    assert request_to_blame([]) is None


def test_request_that_runs_for_long_without_a_visible_token_is_not_new() -> None:
    assert request_to_blame([Admitted("whole", 0, 60.0)]) is None


@given(PRESENT, PRESENT)
def test_one_more_old_request_changes_no_verdict(present: list[Admitted], more: list[Admitted]) -> None:
    old = [a._replace(tokens=a.tokens + 4, request=("old", a.request)) for a in more]
    assert request_to_blame([*present, *old]) == request_to_blame(present)


def test_second_death_makes_poison_and_one_does_not() -> None:
    poison = PoisonList()
    assert not poison.blame("a", 1.0)
    assert not poison.blame("b", 2.0)
    assert not poison.is_poison("a", 2.0)
    assert poison.blame("a", 3.0)
    assert poison.is_poison("a", 4.0)
    assert not poison.is_poison("b", 4.0)


def test_two_deaths_may_be_chance_while_engines_die_without_a_cause() -> None:
    poison = PoisonList()
    poison.blame("a", 1.0)
    poison.blame_none(2.0)
    assert not poison.blame("a", 3.0)
    assert poison.blame("a", 4.0)


def test_deaths_are_forgotten() -> None:
    poison = PoisonList()
    poison.blame("a", 0.0)
    assert not poison.blame("a", 1000.0)
    assert poison.blame("a", 1001.0)
    assert not poison.is_poison("a", 2000.0)


def test_memory_is_bounded_and_keeps_the_newest() -> None:
    poison = PoisonList()
    for number in range(5000):
        poison.blame(number, 1.0)
    assert poison.blame(4999, 1.0)
    assert not poison.blame(0, 1.0)


def test_request_that_was_answered_in_the_end_begins_anew() -> None:
    deaths = PoisonList()
    assert not deaths.blame("a", 0.0)
    deaths.forget("a")
    assert not deaths.blame("a", 10.0)
    assert not deaths.is_poison("a", 10.0)
    assert deaths.blame("a", 20.0)
    deaths.forget("b")
