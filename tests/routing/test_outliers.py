"""Tests that slow replicas are ejected."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.health.outliers import Outliers

PACES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.001, 2.0), min_size=1)


def observed(paces: dict[str, float], now_s: float = 0.0, tokens: int = 100) -> Outliers:
    outliers = Outliers()
    for key, pace_s in paces.items():
        outliers.observe(key, tokens=tokens, seconds=tokens * pace_s, now_s=now_s)
    return outliers


def test_much_slower_replica_is_put_aside_for_a_while() -> None:
    paces = {"a": 0.02, "b": 0.021, "c": 0.2}
    outliers = observed(paces)
    assert outliers.ejected(paces, 0.0) == {"c"}
    assert outliers.ejected(paces, 29.0) == {"c"}
    assert outliers.ejected(paces, 31.0) == frozenset()


def test_one_of_two_may_go_but_never_the_last() -> None:
    outliers = observed({"a": 0.02, "b": 0.2})
    assert outliers.ejected(("a", "b"), 0.0) == {"b"}
    assert outliers.ejected(("b",), 1.0) == frozenset()


def test_slightly_slower_or_little_known_replica_stays() -> None:
    assert observed({"a": 0.02, "b": 0.05}).ejected("ab", 0.0) == frozenset()
    assert observed({"a": 0.001, "b": 0.005}).ejected("ab", 0.0) == frozenset()
    assert observed({"a": 0.02, "b": 0.5}, tokens=5).ejected("ab", 0.0) == frozenset()


def test_replica_found_slow_again_stays_away_longer() -> None:
    outliers = observed({"a": 0.02, "b": 0.2})
    assert outliers.ejected("ab", 0.0) == {"b"}
    for key, pace_s in (("a", 0.02), ("b", 0.2)):
        outliers.observe(key, tokens=100, seconds=100 * pace_s, now_s=40.0)
    assert outliers.ejected("ab", 40.0) == {"b"}
    assert outliers.ejected("ab", 95.0) == {"b"}


def test_replica_that_is_slow_for_weeks_stays_away_at_most_five_minutes_at_a_time() -> None:
    outliers, now_s, aside = Outliers(), 0.0, 0
    for _ in range(1100):
        for key, pace_s in (("a", 0.02), ("b", 0.2)):
            outliers.observe(key, tokens=100, seconds=100 * pace_s, now_s=now_s)
        aside += outliers.ejected("ab", now_s) == {"b"}
        now_s += 301.0
        assert outliers.ejected("ab", now_s) == frozenset()
    assert aside == 1100


@given(PACES)
def test_half_of_the_replicas_stay_and_the_quickest_is_among_them(paces: dict[str, float]) -> None:
    aside = observed(paces).ejected(paces, 0.0)
    assert len(aside) <= len(paces) // 2
    assert min(paces, key=lambda key: paces[key]) not in aside
