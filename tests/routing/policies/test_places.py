"""Tests of the wait for one of an engine's running sequences."""

from __future__ import annotations

import pytest
from fleets import Fleet, prompt

from longboat.routing.policies.contract import EngineReport
from longboat.routing.policies.cost import Cost
from longboat.routing.policies.places import Places
from longboat.routing.policies.prefill_time import PrefillSeed

SEED = PrefillSeed(token_s=1e-4, request_s=0.0)
LIMIT = 4


def decoding_fleet(requests: int, *, limit: int | None = LIMIT) -> Fleet:
    """Make two replicas: the first has requests that decode, the second is busy with a prefill of half a second."""
    fleet = Fleet(Cost(SEED), 2)
    for endpoint in fleet.endpoints:
        fleet.router.limit(endpoint.key, limit)
    ended = prompt("ended", "", tokens=10)
    fleet.router.sent(ended, "replica-0", cached_tokens=0, now_s=0.0)
    fleet.router.first_token(ended, cached_tokens=0, now_s=0.0)
    fleet.router.ended(ended, output_tokens=1, now_s=8.0)  # it had its place for 8 s
    for number in range(requests):
        running = prompt(f"running{number}", "", tokens=10)
        fleet.router.sent(running, "replica-0", cached_tokens=0, now_s=8.0)
        fleet.router.first_token(running, cached_tokens=0, now_s=8.0)
    fleet.router.sent(prompt("long", "", tokens=5000), "replica-1", cached_tokens=0, now_s=8.0)
    return fleet


@pytest.mark.parametrize(("running", "limit", "wait_s"), [(3, 4, 0.0), (4, 4, 2.0), (6, 4, 6.0), (6, None, 0.0)])
def test_the_wait_is_the_time_in_which_as_many_requests_end_as_are_before(
    running: int, limit: int | None, wait_s: float
) -> None:
    fleet = decoding_fleet(running, limit=limit)
    assert fleet.choose(prompt("new", "", tokens=100), now_s=8.0)[1].terms[0][0] == pytest.approx(wait_s)


@pytest.mark.parametrize(("running", "place"), [(3, "replica-0"), (4, "replica-1")])
def test_a_request_goes_where_a_sequence_is_free_though_a_prefill_is_before_it(running: int, place: str) -> None:
    fleet = decoding_fleet(running)
    assert fleet.choose(prompt("new", "", tokens=100), now_s=8.0)[0] == place


def test_other_gateways_requests_take_places_too() -> None:
    fleet = decoding_fleet(1)
    fleet.router.reported("replica-0", EngineReport(taken_s=8.0, running=4, waiting=0))
    assert fleet.choose(prompt("new", "", tokens=100), now_s=8.0)[1].terms[0][0] == pytest.approx(2.0)


def test_the_time_for_which_a_request_waited_for_a_place_says_nothing_of_prefills() -> None:
    policy = Cost(SEED)
    fleet = Fleet(policy, 1)
    fleet.router.limit("replica-0", 2)
    requests = [prompt(f"r{number}", "", tokens=5000) for number in range(3)]
    for request in requests:
        fleet.router.sent(request, "replica-0", cached_tokens=0, now_s=0.0)
    for number, request in enumerate(requests):
        fleet.router.first_token(request, cached_tokens=0, now_s=100.0 * number)
    assert policy.prefill_time.samples == 0


def test_a_replica_with_exactly_as_many_requests_as_places_tells_of_prefills() -> None:
    policy = Cost(SEED)
    fleet = Fleet(policy, 1)
    fleet.router.limit("replica-0", 2)
    for number in range(2):
        request = prompt(f"r{number}", "", tokens=5000)
        fleet.router.sent(request, "replica-0", cached_tokens=0, now_s=float(number))
        fleet.router.first_token(request, cached_tokens=0, now_s=number + 0.5)
    assert policy.prefill_time.samples == 2


def test_a_request_that_waited_says_nothing_of_prefills_after_its_place_came_free() -> None:
    policy = Cost(SEED)
    fleet = Fleet(policy, 1)
    fleet.router.limit("replica-0", 1)
    first, second, third = (prompt(name, "", tokens=tokens) for name, tokens in (("a", 5000), ("b", 100), ("c", 5000)))
    fleet.router.sent(first, "replica-0", cached_tokens=0, now_s=0.0)
    fleet.router.first_token(first, cached_tokens=0, now_s=0.5)
    fleet.router.sent(second, "replica-0", cached_tokens=0, now_s=1.0)
    fleet.router.ended(first, output_tokens=1, now_s=100.0)
    fleet.router.first_token(second, cached_tokens=0, now_s=100.5)
    assert policy.prefill_time.samples == 1
    fleet.router.ended(second, output_tokens=1, now_s=101.0)
    fleet.router.sent(third, "replica-0", cached_tokens=0, now_s=101.0)
    fleet.router.first_token(third, cached_tokens=0, now_s=101.5)
    assert policy.prefill_time.samples == 2


def test_without_an_ended_request_nothing_is_known_of_places() -> None:
    load = Fleet(Cost(SEED), 1).router.load_of("replica-0")
    load.sequences = load.requests = 3
    places = Places()
    assert places.is_full(load)
    assert places.wait_s(load) == 0.0
    places.ended("a request that had no first token", 5.0)
    assert places.wait_s(load) == 0.0
