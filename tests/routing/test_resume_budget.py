"""Tests of the limit of streams that resume at the same time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.health.resume_budget import ResumeBudget

STEPS = st.lists(st.tuples(st.sampled_from(("ask", "leave", "next")), st.integers(0, 8)), max_size=80)


def test_answers_above_the_budget_wait_in_their_order() -> None:
    budget: ResumeBudget[str] = ResumeBudget()
    assert [budget.ask(who, allowed=2) for who in "abcd"] == [True, True, False, False]
    assert budget.next(allowed=2) is None
    budget.leave("a")
    assert budget.next(allowed=2) == "c"
    assert budget.next(allowed=2) is None
    budget.leave("d")
    budget.leave("b")
    assert budget.next(allowed=2) is None


def test_asking_twice_takes_one_place() -> None:
    budget: ResumeBudget[str] = ResumeBudget()
    assert budget.ask("a", allowed=1)
    assert budget.ask("a", allowed=1)
    assert not budget.ask("b", allowed=1)
    assert not budget.ask("b", allowed=1)
    assert (budget.num_running, budget.num_waiting) == (1, 1)


@given(STEPS, st.integers(1, 4))
def test_never_more_than_allowed_and_nobody_is_lost(steps: list[tuple[str, int]], allowed: int) -> None:
    budget: ResumeBudget[int] = ResumeBudget()
    inside: set[int] = set()
    for name, who in steps:
        if name == "ask":
            budget.ask(who, allowed=allowed)
            inside.add(who)
        elif name == "leave":
            budget.leave(who)
            inside.discard(who)
        else:
            budget.next(allowed=allowed)
        assert budget.num_running <= allowed
        assert budget.num_running + budget.num_waiting == len(inside)
    while budget.num_waiting:
        for who in sorted(inside):
            if budget.num_waiting and budget.next(allowed=allowed) is None:
                budget.leave(who)
                inside.discard(who)
