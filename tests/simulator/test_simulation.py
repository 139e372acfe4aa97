"""Tests of whole runs: the same seed gives the same result, each request ends once, queues are as theory has them."""

from __future__ import annotations

import pytest
from twin_fleets import LIMITS, TIME, fleet_of, plain, talks

from longboat.core.policy import QueuePolicy
from longboat.routing.policies.registry import POLICIES, policy_of
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.fleet.fleet import Fleet, FleetEvent, Objectives, Replica, even_fleet
from longboat.simulator.fleet.simulation import simulate
from longboat.simulator.results.result import Result, quantiles
from longboat.simulator.results.rows import row_of
from longboat.simulator.traces.trace_request import TraceRequest

NUM_TALKS = sum(1 for _ in talks())


def run(fleet: Fleet, policy: str = "cost", seed: int = 1) -> Result:
    return simulate(fleet, talks(), lambda: policy_of(policy), seed=seed)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_once_under_every_policy(policy: str) -> None:
    result = run(fleet_of(gateways=2), policy)
    assert result.requests == NUM_TALKS == len(result.ttft_s) == len(result.arrived_s)
    assert sum(one.requests for one in result.replicas) == NUM_TALKS
    assert 0.0 < result.cached_share < 1.0
    assert result.output_tokens == result.itl_s.count + NUM_TALKS


@pytest.mark.parametrize("policy", ["cost", "power_of_two"])
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    first, second = (row_of(run(fleet_of(gateways=3), policy)) for _ in range(2))
    assert first == second


def test_another_seed_gives_another_result() -> None:
    first, second = (row_of(run(fleet_of(gateways=3), "round_robin", seed)) for seed in (1, 2))
    assert first != second


def test_caches_are_found_again_by_routing_to_them() -> None:
    blind, aware = run(fleet_of(8), "round_robin"), run(fleet_of(8), "dynamo")
    assert aware.cached_share > blind.cached_share + 0.1
    assert aware.mean_ttft_s < blind.mean_ttft_s


def test_a_server_with_one_place_waits_as_queueing_theory_says() -> None:
    """M/D/1: the mean wait is load / (2 (1 - load)) services."""
    time = StepTime(base_s=0.0999, prompt_token_s=1e-6)
    fleet = Fleet(
        replicas=even_fleet(1, time, EngineLimits(kv_blocks=100_000, max_num_seqs=1)), network_s=0.0, report_s=0.0
    )
    for load in (0.5, 0.8):
        result = simulate(fleet, plain(load / 0.1, 8_000, 100, 1), lambda: policy_of("round_robin"))
        wait_s = result.mean_ttft_s - 0.1
        assert wait_s == pytest.approx(0.1 * load / (2 * (1 - load)), rel=0.15)


def test_slots_hold_requests_back_in_the_gateways_queue() -> None:
    fleet = fleet_of(1, slots=2)
    result = simulate(fleet, plain(5.0, 200, 1000, 100), lambda: policy_of("least_requests"))
    assert result.requests + result.rejected == 200 and result.queue_s.mean > 1.0


@pytest.mark.parametrize(("slots", "gateways"), [(1, 4), (5, 3)])
def test_gateways_divide_the_slots_of_replicas(slots: int, gateways: int) -> None:
    """A burst fills all slots; by chance, one gateway has more of it than the others, and takes a little longer."""
    alone_s, divided_s = (
        simulate(
            fleet_of(4, slots=slots, gateways=count),
            iter([TraceRequest(0.0, 100, 400) for _ in range(32 * slots)]),
            lambda: policy_of("least_requests"),
        ).span_s
        for count in (1, gateways)
    )
    assert 0.99 < divided_s / alone_s < 1.4


def test_a_gateway_without_a_slot_has_one_anyway() -> None:
    result = simulate(fleet_of(1, slots=1, gateways=4), plain(0.1, 20, 100, 10), lambda: policy_of("cost"))
    assert (result.requests, result.rejected) == (20, 0)


def test_a_queue_refuses_what_it_cannot_hold() -> None:
    fleet = fleet_of(1, slots=1, queue=QueuePolicy(max_waiting=3))
    result = simulate(fleet, plain(50.0, 100, 1000, 100), lambda: policy_of("round_robin"))
    assert result.rejected and result.requests + result.rejected == 100


def test_requests_that_no_cache_holds_are_counted() -> None:
    requests = [*plain(1.0, 3, LIMITS.kv_blocks * LIMITS.block_tokens, 1), *plain(1.0, 3, 10, 1)]
    requests.sort(key=lambda request: request.at_s)
    result = simulate(fleet_of(), iter(requests), lambda: policy_of("cost"))
    assert (result.too_long, result.requests) == (3, 3)


@pytest.mark.parametrize("policy", ["cost", "dynamo", "round_robin"])
def test_streams_go_on_elsewhere_when_a_replica_dies(policy: str) -> None:
    events = (
        FleetEvent(at_s=20.0, key="replica-0", kind="fail"),
        FleetEvent(at_s=35.0, key="replica-0", kind="join"),
        FleetEvent(at_s=40.0, key="replica-1", kind="clear"),
        FleetEvent(at_s=45.0, key="replica-1", kind="slow", slowness=3.0),
    )
    result = run(fleet_of(2, events=events, gateways=2), policy)
    assert result.requests == NUM_TALKS and result.retries > 0
    assert result.replicas[0].requests > 0


def test_requests_wait_while_no_replica_is_ready() -> None:
    cold = Replica(key="replica-0", time=TIME, limits=LIMITS, joins_s=30.0)
    result = simulate(Fleet(replicas=(cold,)), plain(1.0, 10, 100, 10), lambda: policy_of("cost"))
    assert result.requests == 10
    assert quantiles(result.ttft_s, (1.0,))[0] > 25.0


def test_every_request_is_counted_where_no_replica_is_left() -> None:
    """Requests wait for a replica as streams do, 300 s; those that had begun too."""
    events = (
        FleetEvent(at_s=100.0, key="replica-0", kind="fail"),
        FleetEvent(at_s=550.0, key="replica-0", kind="join"),
    )
    lost, back = (
        simulate(fleet_of(1, events=some), plain(1.0, 700, 1000, 400), lambda: policy_of("cost"))
        for some in (events[:1], events)
    )
    assert 50 < lost.requests < 100 and lost.requests + lost.rejected == 700
    assert 200 < back.rejected < 400 and back.requests + back.rejected == 700
    assert max(back.ttft_s) < 310.0 and back.retries > 0


def test_the_work_of_a_replica_that_dies_is_counted_once() -> None:
    requests = [*plain(0.5, 10, 1000, 10), TraceRequest(100.0, 1000, 10)]
    events = (FleetEvent(at_s=90.0, key="replica-0", kind="fail"),)
    plainly, dead = (
        simulate(fleet_of(2, events=some), iter(requests), lambda: policy_of("round_robin")) for some in ((), events)
    )
    busy_s = [sum(one.busy_s for one in result.replicas) for result in (plainly, dead)]
    assert dead.requests == 11 and dead.retries == 0
    assert busy_s[0] == pytest.approx(busy_s[1])


def test_a_slow_replica_computes_longer() -> None:
    slow = Replica(key="replica-0", time=TIME, limits=LIMITS, slowness=2.0)
    fast = Replica(key="replica-0", time=TIME, limits=LIMITS)
    first, second = (
        simulate(Fleet(replicas=(one,), network_s=0.0), plain(0.01, 20, 1000, 50), lambda: policy_of("round_robin"))
        for one in (slow, fast)
    )
    assert first.mean_ttft_s == pytest.approx(2 * second.mean_ttft_s, rel=0.05)
    assert first.itl_s.mean == pytest.approx(2 * second.itl_s.mean, rel=0.05)


@pytest.mark.parametrize(("ttft_s", "itl_s", "good"), [(1.0, 1.0, 0), (2.0, 0.1, 20)])
def test_good_requests_are_those_whose_shown_times_keep_the_objectives(ttft_s: float, itl_s: float, good: int) -> None:
    """The way of a token to the gateway is part of the time to the first one, and of no time between two."""
    fleet = fleet_of(2, network_s=0.6, objectives=Objectives(ttft_s=ttft_s, itl_s=itl_s))
    result = simulate(fleet, plain(0.01, 20, 1000, 2), lambda: policy_of("round_robin"))
    assert 1.2 < min(result.ttft_s) <= max(result.ttft_s) < 1.5
    assert result.good == good


def test_prompt_tokens_take_their_time_before_the_engine_counts() -> None:
    fleets = [fleet_of(2, received_token_s=each_s) for each_s in (0.0, 1e-3)]
    plainly, parsed = (simulate(fleet, plain(0.01, 20, 1000, 50), lambda: policy_of("round_robin")) for fleet in fleets)
    assert parsed.mean_ttft_s == pytest.approx(plainly.mean_ttft_s + 1.0, rel=0.01)
    assert parsed.itl_s.mean == pytest.approx(plainly.itl_s.mean)


def test_replicas_of_one_host_slow_one_another_down() -> None:
    def played(hosts: tuple[str, str], rate: float) -> Result:
        replicas = tuple(
            Replica(key=f"replica-{at}", time=TIME, limits=LIMITS, host=host) for at, host in enumerate(hosts)
        )
        fleet = Fleet(replicas=replicas, crowding=1.0)
        return simulate(fleet, plain(rate, 40, 1000, 100), lambda: policy_of("round_robin"))

    apart, together = played(("a", "b"), 4.0), played(("a", "a"), 4.0)
    assert together.itl_s.mean == pytest.approx(2 * apart.itl_s.mean, rel=0.15)
    assert together.mean_ttft_s > 1.5 * apart.mean_ttft_s
    seldom = played(("a", "a"), 0.01)  # two requests of it overlap
    assert seldom.itl_s.mean == pytest.approx(played(("a", "b"), 0.01).itl_s.mean, rel=0.1)


def test_requests_have_the_jitter_that_was_measured() -> None:
    late_s = (0.0, 0.4, 0.4, 0.4)
    plainly, shaken = (
        simulate(fleet_of(2, received_jitter_s=jitter), plain(0.5, 400, 500, 1), lambda: policy_of("round_robin"))
        for jitter in ((), late_s)
    )
    assert shaken.mean_ttft_s - plainly.mean_ttft_s == pytest.approx(0.3, abs=0.03)


def test_replicas_with_jitter_end_requests_at_other_times() -> None:
    one = Replica(key="replica-0", time=TIME, limits=LIMITS, jitter_s=(-0.004, 0.004))
    fleet = Fleet(replicas=(one,))
    first, again, other = (
        simulate(fleet, plain(0.5, 50, 500, 20), lambda: policy_of("round_robin"), seed=seed) for seed in (1, 1, 2)
    )
    assert list(first.ttft_s) == list(again.ttft_s) != list(other.ttft_s)
