"""The fleet's table and the orders of nodes, without a controller."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from test_membership import announcement

from longboat.cluster.members.fleet_table import FleetTable
from longboat.cluster.members.node_orders import NodeOrders
from longboat.cluster.members.startup_grace import AFTER_FIRST_S
from longboat.cluster.protocol.messages import GatewayReport, NodeReport, WeightsReport
from longboat.core.states import Asleep, EndpointTable, Phase


@dataclass
class Hand:
    """A clock that is turned by hand."""

    now_s: float = 1000.0
    clocks_s: float = 0.0  # Unix time less monotonic time

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s + self.clocks_s


@dataclass
class NoNumbers:
    """Models that do not sleep, without figures."""

    asleep: dict[str, Asleep] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)


NUMBERS = NoNumbers()
VALUES = {"models": ["tiny"], "fleet": "f", "gateway": {"host": "h", "port": 1, "processes": 1}, "policy": {}}


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def changes() -> list[None]:
    return []


@pytest.fixture
def fleet(clock: Hand, changes: list[None]) -> FleetTable:
    made = FleetTable(lambda: changes.append(None), clock)
    made.take(VALUES)
    return made


@pytest.mark.parametrize("step_s", [10.0, 100.0, -100.0])
def test_a_step_of_the_wall_clock_makes_no_replica_silent_and_keeps_no_dead_one(
    fleet: FleetTable, clock: Hand, step_s: float
) -> None:
    fleet.hear(announcement("a"))
    before = fleet.table(NUMBERS)
    clock.clocks_s += step_s
    clock.now_s += 1.0
    assert fleet.table(NUMBERS).endpoints == before.endpoints
    (state,) = fleet.states_now()
    assert (state.phase, state.announced_at_s) == (Phase.READY, clock.unix_s() - 1.0)
    let_pass(fleet, clock, 30)
    assert fleet.table(NUMBERS).endpoints == ()
    assert [state.phase for state in fleet.states()] == [Phase.SUSPECT]
    let_pass(fleet, clock, 100)
    assert fleet.states_now() == ()


def test_a_controller_that_was_stopped_takes_no_replica_for_silent(fleet: FleetTable, clock: Hand) -> None:
    """It could not hear them; those that are gone are silent from then on."""
    for _ in range(2):
        fleet.hear(announcement("a"))
        fleet.hear(announcement("b", slot=1))
    let_pass(fleet, clock, 1)
    clock.now_s += 30.0
    assert len(fleet.table(NUMBERS).endpoints) == 2
    assert {state.phase for state in fleet.states()} == {Phase.READY}
    for _ in range(6):
        assert not fleet.hear(announcement("a")).stop
        let_pass(fleet, clock, 1)
    assert [endpoint.replica for endpoint in fleet.table(NUMBERS).endpoints] == ["a"]


def let_pass(fleet: FleetTable, clock: Hand, seconds: int) -> None:
    """Let time pass, in which the controller looks at its replicas."""
    for _ in range(seconds):
        clock.now_s += 1.0
        fleet.table(NUMBERS)


def test_a_table_is_made_again_only_where_something_changed(fleet: FleetTable, changes: list[None]) -> None:
    fleet.hear(announcement("a"))
    fleet.hear(announcement("a"))
    before, known = fleet.table(NUMBERS), len(changes)
    fleet.hear(announcement("a"))
    assert fleet.table(NUMBERS) is before
    assert len(changes) == known
    fleet.hear(announcement("b", slot=1))
    assert [endpoint.replica for endpoint in fleet.table(NUMBERS).endpoints] == ["a", "b"]
    assert len(changes) > known


def test_many_replicas_that_drain_at_once_make_no_table_each(
    fleet: FleetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"r{number}" for number in range(100)]
    for slot, name in enumerate(names):
        fleet.hear(announcement(name, slot=slot))
    made: list[None] = []
    looked = fleet.members.states
    monkeypatch.setattr(fleet.members, "states", lambda *args: (made.append(None), looked(*args))[1])
    for slot, name in enumerate(names):
        assert fleet.hear(announcement(name, Phase.DRAINING, slot=slot)).patience_s is not None
    assert len(made) <= 1


def test_a_new_controller_knows_all_replicas_only_after_a_while(fleet: FleetTable, clock: Hand) -> None:
    fleet.hear(announcement("a"))
    assert fleet.is_partial()
    let_pass(fleet, clock, round(AFTER_FIRST_S))
    assert not fleet.is_partial()


def test_a_drained_replica_is_ordered_to_leave_and_may_stay_while_its_responses_run(fleet: FleetTable) -> None:
    fleet.take({**VALUES, "drains": {"replicas": ["a"], "gateways": ["n"]}})
    assert fleet.hear(announcement("a")).leave
    assert not fleet.hear(announcement("b", slot=1)).leave
    assert fleet.hear(announcement("a", Phase.DRAINING)).patience_s is not None
    assert (fleet.is_drained("n"), fleet.is_drained("other")) == (True, False)


def test_an_order_has_what_changed_since_the_table_that_the_node_reported() -> None:
    orders = NodeOrders("e")
    orders.take(VALUES)
    table = EndpointTable(version=1, models=("tiny",), endpoints=())
    first = orders.order("n", ["n"], table, drained=True)
    assert (first.drained, first.update.number > 0, orders.has_gap("n")) == (True, True, False)
    gateway = GatewayReport(node_id="n", address="a", hostname="h", url="u", pid=7, table_version=0)
    orders.reports["n"] = NodeReport(gateway=gateway)
    assert orders.has_gap("n"), "it has none of the tables that it was sent"


def test_what_a_silent_node_reported_before_is_kept() -> None:
    orders = NodeOrders("e")
    orders.silent("n", TimeoutError())
    assert orders.reports["n"].gateway.problem == "node does not answer (TimeoutError)"
    gateway = GatewayReport(node_id="n", address="a", hostname="h", url="u", pid=7, table_version=4)
    weights = WeightsReport(member="a:1", sources=("s3://m",))
    orders.reports["n"] = NodeReport(gateway=gateway, weights=weights)
    orders.silent("n", TimeoutError())
    assert orders.reports["n"].weights == weights, "its place among the trackers too"
    kept = orders.reports["n"].gateway
    assert (kept.address, kept.url, kept.pid, kept.table_version) == ("a", "u", 7, 4)
    orders.leave("n")
    assert not orders.reports
