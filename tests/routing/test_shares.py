"""Tests of shares: an engine's slots by gateway and endpoint, never more than exist, by tenants' demand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.core.states import Endpoint, EndpointTable
from longboat.routing.capacity.shares import Divider, divided_slots, read_demands, written_demands
from longboat.routing.capacity.slots import Demand, lease_by_tenant

CAPACITIES = st.lists(st.integers(0, 80), min_size=1, max_size=6)
DEMANDS = st.lists(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.builds(
            Demand, weight=st.sampled_from([0.5, 1.0, 3.0]), running=st.integers(0, 50), waiting=st.integers(0, 500)
        ),
    ),
    min_size=1,
    max_size=6,
)


def waits(number: int) -> dict[str, Demand]:
    return {"a": Demand(weight=1.0, running=0, waiting=number)}


def one(replica: str = "r0", capacity: int | None = 8, model: str = "m", *, ready: bool = True) -> Endpoint:
    return Endpoint(
        model=model, replica=replica, generation=1, url=f"http://{replica}:1", ready=ready, capacity=capacity
    )


def parts(*endpoints: Endpoint, demands: list[dict[str, dict[str, Demand]]]) -> list[list[int | None]]:
    table = EndpointTable(version=3, models=("m",), endpoints=endpoints)
    return [[e.capacity for e in own.endpoints] for own in Divider().tables(table, demands)]


@given(CAPACITIES, DEMANDS)
def test_no_engine_is_given_out_beyond_its_slots(capacities: list[int], demands: list[dict[str, Demand]]) -> None:
    rows = divided_slots(capacities, demands)
    assert len(rows) == len(demands)
    assert all(slots >= 0 for row in rows for slots in row)
    assert all(sum(column) <= most for column, most in zip(zip(*rows, strict=True), capacities, strict=True))


@given(CAPACITIES, DEMANDS)
def test_a_gateways_total_is_its_lease_and_at_least_one(
    capacities: list[int], demands: list[dict[str, Demand]]
) -> None:
    leases = lease_by_tenant(sum(capacities), demands)
    least = 1 if sum(capacities) >= len(demands) else 0
    assert [sum(row) for row in divided_slots(capacities, demands)] == [max(least, slots) for slots in leases]


@given(CAPACITIES, DEMANDS)
def test_a_gateway_has_about_the_same_part_of_every_engine(
    capacities: list[int], demands: list[dict[str, Demand]]
) -> None:
    for row in divided_slots(capacities, demands):
        for slots, capacity in zip(row, capacities, strict=True):
            assert abs(slots - sum(row) * capacity / max(1, sum(capacities))) <= len(capacities) + 1


@given(CAPACITIES, DEMANDS)
def test_equal_demands_give_equal_shares_in_whatever_order_tenants_come(
    capacities: list[int], demands: list[dict[str, Demand]]
) -> None:
    turned = [dict(reversed(gateway.items())) for gateway in demands]
    assert divided_slots(capacities, turned) == divided_slots(capacities, demands)


@given(DEMANDS, st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=4))
def test_every_gateway_has_a_slot_where_an_engine_is_ready(
    demands: list[dict[str, Demand]], engines: list[tuple[int, bool]]
) -> None:
    endpoints = [one(f"r{n}", capacity, ready=ready) for n, (capacity, ready) in enumerate(engines)]
    for row in parts(*endpoints, demands=[{"m": gateway} for gateway in demands]):
        ready_slots = [slots or 0 for slots, endpoint in zip(row, endpoints, strict=True) if endpoint.ready]
        assert not ready_slots or sum(ready_slots) >= 1


def test_who_has_all_the_demand_gets_nearly_all() -> None:
    assert parts(one("r0"), one("r1"), demands=[{"m": waits(100)}, {}]) == [[8, 7], [0, 1]]


def test_without_demand_slots_are_spread_evenly() -> None:
    assert parts(one("r0"), one("r1"), demands=[{}, {}]) == [[4, 4], [4, 4]]


def test_models_are_divided_apart() -> None:
    demands = [{"m": waits(100)}, {"n": waits(100)}]
    assert parts(one("r0"), one("r1", model="n"), demands=demands) == [[7, 1], [1, 7]]


def test_an_engine_that_takes_nothing_new_is_no_part_of_a_lease() -> None:
    rows = parts(one("r0"), one("r1", ready=False), demands=[{"m": waits(100)}, {}])
    assert rows == [[7, 4], [1, 4]]


def test_an_engine_of_unknown_capacity_is_not_divided_and_holds_back_nothing() -> None:
    busy = {"a": Demand(weight=1.0, running=500, waiting=0)}
    rows = parts(one("r0", None), one("r1"), demands=[{"m": busy}, {"m": waits(500)}])
    assert rows == [[None, 4], [None, 4]]


def test_tables_tell_the_whole_engines_capacity_through_two_divisions() -> None:
    table = EndpointTable(version=3, models=("m",), endpoints=(one(),))
    node = Divider().tables(table, [{}, {}])[0]
    worker = Divider().tables(node, [{}, {}])[0]
    assert (worker.endpoints[0].capacity, worker.endpoints[0].engine_capacity) == (2, 8)
    assert (worker.version, worker.models) == (table.version, table.models)


def test_demands_survive_their_document_and_are_added_up() -> None:
    demands = {"m": {"a": Demand(weight=0.5, running=1, waiting=2)}}
    document = written_demands(demands)
    assert read_demands(document) == demands
    assert read_demands(document, document)["m"]["a"] == Demand(weight=0.5, running=2, waiting=4)
