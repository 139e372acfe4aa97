"""The choice of an endpoint for a request that needs a LoRA adapter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from longboat.routing.adapters import home_of, margin_of, pick_with_adapter


@dataclass(frozen=True)
class End:
    key: str
    outstanding: int = 0
    held: tuple[str, ...] = ()
    ready: bool = True
    suspect: bool = False
    capacity: int | None = 8

    def holds(self, adapter: str) -> bool:
        return adapter in self.held


def chosen(*ends: End, tried: tuple[str, ...] = (), overfull: bool = False) -> tuple[str, str] | None:
    found = pick_with_adapter(ends, "x", turn=0, tried=tried, overfull=overfull)
    return None if found is None else (found[0].key, found[1])


def test_a_holder_is_chosen_although_it_is_busier() -> None:
    assert chosen(End("a", 2, ("x",)), End("b", 0, ("y",))) == ("a", "it holds the adapter")


def test_load_takes_a_request_away_from_the_holders() -> None:
    assert chosen(End("a", 3, ("x",)), End("b", 0)) == ("b", "the adapter's holders are busier")


def test_the_idlest_holder_is_chosen() -> None:
    assert chosen(End("a", 3, ("x",)), End("b", 2, ("x",)), End("c", 2)) == ("b", "it holds the adapter")


@pytest.mark.parametrize("away", [{"ready": False}, {"outstanding": 8}, {"suspect": True}])
def test_a_holder_that_cannot_take_it_is_passed_over(away: dict[str, object]) -> None:
    found = chosen(replace(End("a", 0, ("x",)), **away), End("b", 0))  # type: ignore[arg-type]
    assert found is not None
    assert found[0] == "b"


def test_a_holder_that_was_tried_is_passed_over() -> None:
    assert chosen(End("a", 0, ("x",)), End("b", 1), tried=("a",)) == ("b", "the adapter's holders are busier")


def test_none_is_chosen_where_all_are_full_or_away() -> None:
    full = (End("a", 8, ("x",)), End("b", 8))
    assert chosen(*full) is None
    assert chosen(*full, overfull=True) == ("a", "it holds the adapter")
    assert chosen() is None
    assert chosen(End("a", ready=False)) is None


def test_suspects_are_taken_where_nothing_else_is_left() -> None:
    assert chosen(End("a", suspect=True, held=("x",))) == ("a", "it holds the adapter")


def test_an_adapter_that_none_holds_gets_a_home_among_the_idle() -> None:
    ends = [End(key) for key in "abcd"]
    home = home_of(ends, "x").key
    found = chosen(*ends)
    assert found == (home, "no replica holds the adapter: it gets a home")
    busy = [replace(end, outstanding=5) if end.key == home else end for end in ends]
    other = chosen(*busy)
    assert other is not None
    assert other[0] != home


def test_homes_spread_and_only_those_of_a_lost_endpoint_move() -> None:
    ends = [End(key) for key in "abcd"]
    names = [f"adapter-{number}" for number in range(400)]
    homes = {name: home_of(ends, name).key for name in names}
    assert all(60 < count < 140 for count in Counter(homes.values()).values())
    fewer = {name: home_of(ends[:3], name).key for name in names}
    assert {name for name in names if homes[name] != fewer[name]} == {n for n in names if homes[n] == "d"}


def test_homes_do_not_depend_on_the_order_of_endpoints() -> None:
    ends = [End(key) for key in "abc"]
    assert home_of(ends, "x") == home_of(ends[::-1], "x")


@pytest.mark.parametrize(("capacity", "margin"), [(None, 2), (1, 2), (8, 2), (16, 4), (256, 64)])
def test_the_margin_grows_with_the_engine(capacity: int | None, margin: int) -> None:
    assert margin_of(capacity) == margin
