"""Hysteresis of a count: needs near the edge must last, and counts near the edge are kept for longer."""

from __future__ import annotations

from longboat.scaling.needs import Needs


def test_need_that_a_lower_load_has_too_counts_sooner_than_one_near_the_edge() -> None:
    needs, near = Needs(0.0, 4), Needs(0.0, 4)
    seen = [(needs.rising(at, 4 + (at >= 20), 4 + (at >= 20), 24.0), near.rising(at, 4, 4 + (at >= 20), 24.0))
            for at in range(40)]  # fmt: skip
    assert [first for first, _ in seen].index(5) == 22  # after a twelfth of the cold start
    assert [second for _, second in seen].index(5) == 30


def test_need_that_comes_and_goes_near_the_edge_starts_nothing() -> None:
    needs = Needs(0.0, 4)
    assert {needs.rising(at, 4, 5 if at % 10 > 2 else 4, 2.0) for at in range(100)} == {4}


def test_replica_that_a_higher_load_would_need_stays_longer() -> None:
    spare, near = Needs(0.0, 5), Needs(0.0, 5)
    seen = [(spare.falling(at, 4, 4, 90.0, 300.0), near.falling(at, 4, 5, 90.0, 300.0)) for at in range(400)]
    assert [first for first, _ in seen].index(4) == 91
    assert [second for _, second in seen].index(4) == 301


def test_count_at_the_beginning_is_kept_for_the_patience() -> None:
    needs = Needs(0.0, 9)
    assert [needs.falling(float(at), 2, 2, 90.0, 300.0) for at in (0, 90, 91)] == [9, 9, 2]
