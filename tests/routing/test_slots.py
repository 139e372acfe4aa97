"""Tests of leases: exactly all slots of an engine, fair to gateways and to tenants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.capacity.slots import Demand, corrected, lease, lease_by_tenant

CAPACITIES = st.integers(0, 300)
DEMANDS = st.lists(st.integers(0, 400), min_size=1, max_size=8)
TENANT_DEMANDS = st.lists(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.builds(
            Demand, weight=st.sampled_from([0.5, 1.0, 3.0]), running=st.integers(0, 50), waiting=st.integers(0, 500)
        ),
    ),
    min_size=1,
    max_size=6,
)


@given(CAPACITIES, DEMANDS)
def test_leases_are_the_whole_capacity_and_each_has_one(capacity: int, demands: list[int]) -> None:
    leases = lease(capacity, demands)
    assert len(leases) == len(demands) and sum(leases) == capacity
    assert min(leases) >= (1 if capacity >= len(demands) else 0)


@given(CAPACITIES, DEMANDS)
def test_who_gets_less_than_it_demands_gets_no_less_than_others(capacity: int, demands: list[int]) -> None:
    leases = lease(capacity, demands)
    for mine, demand in zip(leases, demands, strict=True):
        if mine < demand:
            assert mine >= max(leases) - 1


def test_idle_gateways_can_start_at_once() -> None:
    assert lease(12, [0, 0, 0]) == [4, 4, 4]
    assert lease(12, [2, 20, 0]) == [2, 9, 1]
    assert lease(2, [5, 5, 5]) == [1, 1, 0]
    assert lease(5, []) == []


@given(CAPACITIES, TENANT_DEMANDS)
def test_leases_by_tenant_never_allow_more_than_the_capacity(capacity: int, demands: list[dict[str, Demand]]) -> None:
    running = [sum(demand.running for demand in gateway.values()) for gateway in demands]
    leases = lease_by_tenant(capacity, demands)
    may_run = sum(max(slots, runs) for slots, runs in zip(leases, running, strict=True))
    assert min(leases) >= 0
    assert may_run <= max(capacity, sum(running))
    if all(slots >= runs for slots, runs in zip(leases, running, strict=True)):
        assert sum(leases) == capacity


def test_tenant_gets_no_more_by_using_more_gateways() -> None:
    loud, quiet = Demand(weight=1.0, running=0, waiting=500), Demand(weight=1.0, running=0, waiting=30)
    leases = lease_by_tenant(100, [{"loud": loud}, {"loud": loud}, {"loud": loud}, {"quiet": quiet}])
    assert leases[3] >= 38 and sum(leases) == 100


def test_heavier_tenant_gets_more() -> None:
    heavy, light = Demand(weight=3.0, running=0, waiting=500), Demand(weight=1.0, running=0, waiting=500)
    assert lease_by_tenant(102, [{"h": heavy}, {"l": light}]) == [76, 26]


def test_growth_waits_for_what_still_runs() -> None:
    full, new = Demand(weight=1.0, running=20, waiting=100), Demand(weight=1.0, running=0, waiting=100)
    leases = lease_by_tenant(20, [{"a": full}, {"b": new}])
    assert leases == [10, 0]


def test_room_left_is_by_the_larger_count() -> None:
    assert corrected(10, 4, 2, 0) == 6
    assert corrected(10, 4, 7, 1) == 2
    assert corrected(10, 12, 0, 0) == 0
