"""Tests of the choice of an endpoint: always an allowed one, least busy first, equals in turn."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.pick import pick


@dataclass(frozen=True)
class View:
    key: str
    ready: bool = True
    suspect: bool = False
    outstanding: int = 0
    capacity: int | None = None


VIEWS = st.lists(
    st.builds(
        View,
        key=st.sampled_from("abcdefgh"),
        ready=st.booleans(),
        suspect=st.booleans(),
        outstanding=st.integers(0, 5),
        capacity=st.none() | st.integers(1, 5),
    ),
    unique_by=lambda view: view.key,
)
TRIED = st.sets(st.sampled_from("abcdefgh"))
TURNS = st.integers(0, 10**9)


def has_room(view: View) -> bool:
    return view.capacity is None or view.outstanding < view.capacity


@given(VIEWS, TRIED, TURNS)
def test_pick_is_an_untried_ready_endpoint_with_room_and_least_outstanding(
    views: list[View], tried: set[str], turn: int
) -> None:
    chosen = pick(views, turn=turn, tried=tried)
    if chosen is None:
        return
    assert chosen in views and chosen.ready and chosen.key not in tried and has_room(chosen)
    rivals = [v for v in views if v.ready and v.key not in tried and has_room(v)]
    assert (chosen.suspect, chosen.outstanding) == min((v.suspect, v.outstanding) for v in rivals)


@given(VIEWS, TRIED, TURNS)
def test_pick_is_missing_only_where_nothing_can_be_chosen(views: list[View], tried: set[str], turn: int) -> None:
    usable = [v for v in views if v.ready and v.key not in tried]
    assert (pick(views, turn=turn, tried=tried) is None) is not any(map(has_room, usable))
    assert (pick(views, turn=turn, tried=tried, overfull=True) is None) is not bool(usable)


@given(VIEWS, TRIED, TURNS)
def test_pick_is_the_same_for_the_same_input(views: list[View], tried: set[str], turn: int) -> None:
    assert pick(views, turn=turn, tried=tried) == pick(views, turn=turn, tried=tried)


@given(st.integers(1, 8), TURNS)
def test_equals_take_turns(num_views: int, turn: int) -> None:
    views = [View(key=str(i), outstanding=3) for i in range(num_views)]
    chosen = [pick(views, turn=turn + i) for i in range(num_views)]
    assert {c.key for c in chosen if c is not None} == {v.key for v in views}


def test_suspect_endpoint_is_the_last_choice_and_still_a_choice() -> None:
    suspect, busy = View(key="s", suspect=True), View(key="b", outstanding=9)
    assert pick([suspect, busy], turn=0) is busy
    assert pick([suspect, busy], turn=0, tried={"b"}) is suspect
