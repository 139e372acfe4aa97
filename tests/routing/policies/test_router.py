"""Tests of the router's account of replicas that leave and come back between two decisions."""

from __future__ import annotations

from fleets import Fleet, endpoint, prompt

from longboat.routing.policies.contract import EngineReport
from longboat.routing.policies.registry import policy_of


def test_a_replica_that_left_comes_back_with_nothing() -> None:
    fleet = Fleet(policy_of("least_requests"), 2)
    first = fleet.send(prompt("a", "xy"))
    fleet.router.left(first)
    found = fleet.router.choose(prompt("b", "xy"), fleet.endpoints, turn=0, now_s=1.0)
    assert found is not None and sorted(found[2]) == ["replica-0", "replica-1"]
    fleet.router.sent(prompt("b", "xy"), first, cached_tokens=0, now_s=1.0)
    assert fleet.router.load_of(first).requests == 1
    assert fleet.send(prompt("c", "z"), now_s=2.0) != first


def test_what_an_engine_said_before_it_left_says_nothing_of_the_next_in_its_slot() -> None:
    fleet = Fleet(policy_of("cost"), 1)
    wanted = prompt("a", "xy")
    key = fleet.send(wanted)
    report = EngineReport(taken_s=0.0, running=0, waiting=0, queued_tokens=1_000_000)
    fleet.router.reported(key, report, tells=True)
    fleet.router.left(key)
    fleet.endpoints = [endpoint("another")]
    assert fleet.choose(prompt("b", "z"), now_s=1.0)[1].terms[0][0] == 0.0
    fleet.router.ended(wanted, output_tokens=0, now_s=1.0)
    assert fleet.choose(prompt("c", "z"), now_s=1.0)[1].terms[0][0] == 0.0


def test_decisions_follow_which_endpoints_may_have_the_request() -> None:
    fleet = Fleet(policy_of("least_requests"), 3)
    for number, ready in enumerate(([0, 1, 2], [2], [0, 2], [0, 1, 2])):
        for at, one in enumerate(fleet.endpoints):
            one.ready = at in ready
        found = fleet.router.choose(prompt(f"{number}", "x"), fleet.endpoints, turn=number, now_s=0.0)
        assert found is not None
        assert found[2] == [f"replica-{at}" for at in ready]
        assert found[0].key in found[2]


def test_a_trip_counts_tokens_only_after_its_first() -> None:
    fleet = Fleet(policy_of("least_requests"), 1)
    wanted = prompt("a", "x", tokens=100)
    trip = fleet.router.sent(wanted, "replica-0", cached_tokens=0, now_s=0.0)
    load = fleet.router.load_of("replica-0")
    trip.progressed(5)
    assert load.decode_tokens == 0
    fleet.router.first_token(wanted, cached_tokens=0, now_s=1.0)
    trip.progressed(7)
    assert load.decode_tokens == 107
    fleet.router.progressed(wanted, 9)
    assert load.decode_tokens == 109
    fleet.router.ended(wanted, output_tokens=9, now_s=2.0)
    assert load.decode_tokens == 0 and load.requests == 0
