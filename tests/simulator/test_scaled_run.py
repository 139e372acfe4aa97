"""The twin of a fleet that grows and shrinks: cold starts, drains without a loss, and what is paid for."""

from __future__ import annotations

import pytest

from longboat.core.scaling import ModelObservation, Objective, ScaledModel, SloTarget
from longboat.scaling.rule import Rule, Want
from longboat.scaling.scaler import Scaler
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.scaled.scaled_fleet import ScaledFleet, ScaledResult
from longboat.simulator.scaled.scaled_run import simulate_scaled
from longboat.simulator.traces.trace_request import TraceRequest


class Steps(Rule):
    """A rule with counts that were written down: from each time on, this many."""

    def __init__(self, steps: dict[float, int]) -> None:
        self._steps = steps
        self.seen: list[ModelObservation] = []

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Keep what was seen."""
        self.seen.append(seen)

    def want(self, now_s: float, current: int) -> Want:
        """Return the newest count."""
        return Want(replicas=[count for at_s, count in self._steps.items() if at_s <= now_s][-1], reason="written")


def play(
    steps: dict[float, int], requests: list[TraceRequest], cold_s: float = 10.0, *, as_reported: bool = False
) -> tuple[ScaledResult, Steps]:
    rule = Steps(steps)
    fleet = ScaledFleet(
        time=StepTime(base_s=0.02, prompt_token_s=1e-4),
        limits=EngineLimits(kv_blocks=1000, max_num_seqs=4, prefix_caching=False),
        objective=Objective(ttft_ms=500.0),
        initial=steps[0.0],
        cold_start_s=cold_s,
        cold_start_spread=0.0,
        begin_s=0.0,
        as_reported=as_reported,
    )
    target = SloTarget(objectives=(fleet.objective,))
    model = ScaledModel(name="model", target=target, min_replicas=0, max_replicas=9, initial_replicas=steps[0.0])
    return simulate_scaled(fleet, iter(requests), Scaler([model], make_rule=lambda _: rule)), rule


def every(seconds: float, count: int, output: int = 50) -> list[TraceRequest]:
    return [TraceRequest(at * seconds, 100, output) for at in range(count)]


def test_replica_serves_after_its_cold_start_and_is_paid_for_from_the_decision() -> None:
    result, rule = play({0.0: 1, 20.0: 2}, every(1.0, 61))
    by_s = {round(one.at_s): one for one in result.moments}
    assert (by_s[21].ready, by_s[21].starting) == (1, 1)
    assert (by_s[31].ready, by_s[31].starting) == (2, 0)
    assert result.replica_s == pytest.approx(60.0 + 40.0)
    assert result.starts == 1
    assert [round(one.starting[0].age_s) for one in rule.seen if one.starting] == list(range(1, 10))


def test_replica_that_leaves_finishes_its_requests() -> None:
    """Outputs take 20 s: what began before the order to leave goes on, and nothing is lost."""
    result, _ = play({0.0: 2, 5.0: 1}, every(1.0, 8, output=1000))
    assert result.requests == 8
    draining = [one.draining for one in result.moments]
    assert max(draining) == 1
    assert draining[-1] == 0


def test_replicas_that_are_starting_leave_first() -> None:
    result, _ = play({0.0: 1, 5.0: 3, 8.0: 1}, every(1.0, 31))
    assert result.starts == 2
    assert result.replica_s == pytest.approx(30.0 + 2 * 3.0)
    assert max(one.draining for one in result.moments) == 0


def test_requests_wait_in_the_gateway_while_there_is_no_replica() -> None:
    result, rule = play({0.0: 0, 3.0: 1}, every(1.0, 5))
    assert result.requests == 5
    assert max(one.waiting for one in rule.seen) == 5
    assert result.late == 5


def test_a_run_ends_where_no_replica_can_serve() -> None:
    long = TraceRequest(2.5, 100_000, 10)
    result, _ = play({0.0: 1}, [*every(1.0, 3), long])
    assert (result.requests, result.too_long, result.unserved) == (3, 1, 0)
    result, _ = play({0.0: 0}, every(1.0, 5))
    assert (result.requests, result.unserved, result.kept_share) == (0, 5, 0.0)
    result, _ = play({0.0: 0, 200.0: 1}, every(1.0, 5))
    assert (result.requests, result.unserved) == (5, 0)


def test_observations_count_each_request_once() -> None:
    _, rule = play({0.0: 1}, every(0.3, 100))
    assert sum(one.arrived for one in rule.seen) == 100
    assert sum(one.ended for one in rule.seen) <= 100
    assert sum(one.prompt_tokens for one in rule.seen) == 10_000
    assert all(lengths == (100, 50) for one in rule.seen for lengths in one.lengths)


def test_a_gateway_reports_its_newest_responses() -> None:
    requests = [TraceRequest(0.5, 10 + at, 1) for at in range(80)]
    for as_reported, judged, lengths in ((False, 80, 27), (True, 32, 32)):
        _, rule = play({0.0: 20}, [*requests, *every(1.0, 5)], as_reported=as_reported)
        seen = max(rule.seen, key=lambda one: one.ended)
        (latency,) = seen.latencies
        assert (seen.ended, latency.ended, latency.judged, len(seen.lengths)) == (80, 80, judged, lengths)
