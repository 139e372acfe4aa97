"""Large fleets: relays instead of every heartbeat, fewer announcements, changes that are sent together."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from test_membership import announcement

from longboat.cluster.fleet.controller import FleetController
from longboat.cluster.members.membership import SILENCE_S, Membership, RelayView
from longboat.cluster.members.relay_book import (
    DIRECT_UNTIL,
    RELAYED_FROM,
    RelayBook,
    announce_every_s,
    order_every_s,
    push_pause_s,
)
from longboat.cluster.members.startup_grace import AFTER_FIRST_S, HoldOff
from longboat.cluster.protocol.announcer import Announcer
from longboat.cluster.protocol.messages import Announcement, GatewayReport, NodeReport, Verdict
from longboat.cluster.ray.fleet_orders import carry_out
from longboat.core.states import Phase, RankState


def on_node(replica: str, node: str, slot: int = 0, every_s: float = 1.0) -> Announcement:
    said = announcement(replica, slot=slot)
    rank = RankState(node_rank=0, node_id=node, address="10.0.0.1")
    state = dataclasses.replace(said.state, ranks=(rank,))
    return dataclasses.replace(said, state=state, beats="10.0.0.1:7", every_s=every_s)


def report(relay: str, *unwell: str) -> NodeReport:
    gateway = GatewayReport(node_id="n", address="", hostname="", url="", pid=1, table_version=1)
    return NodeReport(gateway=gateway, relay=relay, relay_key=f"key of {relay}" if relay else "", unwell=unwell)


@pytest.fixture
async def controller() -> AsyncIterator[Any]:
    """The real controller, without nodes: its loops are cancelled before they run."""

    async def end_daemon(node_id: str) -> bool:
        return True

    made: Any = FleetController.__new__(FleetController)
    await made.__init__(lambda node_id: None, end_daemon, carry_out, hold_room=None, ask_for_nodes=lambda *_: False)
    made._fleet.take({"models": ["tiny"]})
    yield made
    await made.end_nodes()


def test_small_fleets_are_heard_directly_and_the_bound_does_not_flap() -> None:
    book = RelayBook()
    book.hear("n", report("h:1"))
    seen = [bool(book.by_node(number)) for number in (RELAYED_FROM - 1, RELAYED_FROM, DIRECT_UNTIL, DIRECT_UNTIL - 1)]
    assert seen == [False, True, True, False]
    assert not book.keys()


def test_a_node_that_reports_no_relay_has_none_any_more() -> None:
    book = RelayBook()
    book.hear("n", report("h:1", "a"))
    assert dict(book.by_node(1000)) == {"n": "h:1"}
    assert (dict(book.keys()), book.unwell()) == ({"h:1": "key of h:1"}, {"a"})
    changes = book.num_changes
    book.hear("n", report("h:1", "a"))
    assert book.num_changes == changes, "the same report is no news"
    book.hear("n", report(""))
    assert not book.by_node(1000) and not book.unwell()
    assert book.num_changes > changes


def test_what_the_relay_of_a_node_that_does_not_answer_found_is_forgotten_and_the_relay_is_kept() -> None:
    book = RelayBook()
    book.hear("n", report("h:1", "a"))
    assert (book.has_unwell("n"), book.has_unwell("other")) == (True, False)
    changes = book.num_changes
    book.forget_unwell("n")
    assert book.num_changes > changes
    assert not book.has_unwell("n") and not book.unwell()
    assert dict(book.by_node(1000)) == {"n": "h:1"}


def test_the_table_names_relays_and_leaves_out_what_they_find_silent() -> None:
    membership = Membership()
    membership.hear(on_node("a", "n1"), 0.0)
    membership.hear(on_node("b", "n2", slot=1), 0.0)
    key = membership.table(["tiny"], 0.0).endpoints[0].key
    view = RelayView(by_node={"n1": "h:1"}, keys={"h:1": "k"}, unwell={key})
    table = membership.table(["tiny"], 0.0, relays=view)
    assert [(e.relay, e.ready, e.unwell) for e in table.endpoints] == [("h:1", False, True), ("", True, False)]
    assert (dict(table.relays), "'k'" in repr(table)) == ({"h:1": "k"}, False)
    better = membership.table(["tiny"], 0.0, relays=dataclasses.replace(view, unwell=()))
    assert [(e.ready, e.unwell) for e in better.endpoints] == [(True, False)] * 2


def test_endpoints_that_do_not_change_stay_the_same_objects() -> None:
    membership = Membership()
    membership.hear(on_node("a", "n1"), 0.0)
    membership.hear(on_node("a", "n1"), 1.0)
    before, changes = membership.table(["tiny"], 1.0), membership.num_changes
    membership.hear(on_node("a", "n1"), 2.0)
    after = membership.table(["tiny"], 2.0)
    assert after.endpoints[0] is before.endpoints[0]
    assert membership.num_changes == changes, "an announcement without news costs no table"


def test_one_that_announces_seldom_may_be_silent_for_longer() -> None:
    membership = Membership()
    membership.hear(on_node("often", "n1"), 0.0)
    membership.hear(on_node("seldom", "n1", slot=1, every_s=10.0), 0.0)
    changes = membership.num_changes
    membership.expire(SILENCE_S + 1.0)
    assert membership.num_changes > changes
    assert [e.replica for e in membership.table(["tiny"], SILENCE_S + 1.0).endpoints] == ["seldom"]
    assert membership.table(["tiny"], SILENCE_S + 9.5).endpoints == ()


def test_one_that_announces_seldom_may_not_be_silent_for_longer_once_its_node_left() -> None:
    membership = Membership()
    for slot, node in enumerate(("n1", "n2", "n3")):
        membership.hear(on_node(f"on {node}", node, slot=slot, every_s=10.0), 0.0)
    membership.leave_node("n1")
    membership.leave_node("n3")
    membership.hear(on_node("on n3", "n3", slot=2, every_s=10.0), 1.0)
    assert len(membership.table(["tiny"], SILENCE_S).endpoints) == 3
    membership.expire(SILENCE_S + 1.5)
    assert [e.replica for e in membership.table(["tiny"], SILENCE_S + 1.5).endpoints] == ["on n2", "on n3"]


async def test_one_that_is_asked_to_announce_seldom_is_not_silent_before_it_does(controller: Any) -> None:
    controller._fleet.relays.hear("n", report("h:1"))
    for number in range(1000):
        await controller.announce(on_node(f"r{number}", "n", slot=number))
    controller._fleet.table(controller._counts)
    verdicts = [await controller.announce(on_node(f"r{number}", "n", slot=number)) for number in range(1000)]
    assert {verdict.again_s for verdict in verdicts} == {10.0}
    later_s = time.monotonic() + 10.0
    controller._fleet.members.expire(later_s)
    assert {state.phase for state in controller._fleet.members.states(later_s)} == {Phase.READY}


def test_a_new_controller_waits_for_those_that_announce_seldom() -> None:
    hold_off = HoldOff(0.0)
    hold_off.heard(0.0, every_s=10.0)
    assert hold_off.holds(AFTER_FIRST_S + 8.9)
    assert not hold_off.holds(AFTER_FIRST_S + 9.0)


@pytest.mark.parametrize(("num_replicas", "num_nodes"), [(64, 2), (1000, 16), (10_000, 200), (100_000, 2000)])
def test_what_the_controller_hears_and_sends_in_a_second_is_bounded(num_replicas: int, num_nodes: int) -> None:
    assert num_replicas / announce_every_s(num_replicas) <= max(100.0, num_replicas / 100.0)
    assert announce_every_s(num_replicas) >= 5.0, "each announcement costs the controller 3 ms"
    assert num_nodes / order_every_s(num_nodes) <= 50.0
    assert 0.0 <= push_pause_s(num_nodes, num_replicas) <= 1.0, "a change is in all tables within 2 s"


async def test_an_announcer_asks_again_soon_where_the_controller_was_not_reached() -> None:
    answers = [Verdict(stop=False, again_s=30.0), None, Verdict(stop=False, again_s=0.0)]

    async def announce() -> Verdict | None:
        return answers.pop(0)

    announcer = Announcer(announce)
    seen = []
    for _ in range(3):
        await announcer.turn()
        seen.append(announcer.every_s)
    assert seen == [30.0, 1.0, 1.0]
