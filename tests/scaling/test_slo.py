"""Objectives as the target: patience, zero, cold starts, replicas slower than predicted, and no thrash in the twin."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from longboat.core.scaling import (
    Latency,
    ModelObservation,
    Objective,
    OngoingTarget,
    Quantiles,
    ReplicaSpeed,
    ScaledModel,
    ScalingTarget,
    SloTarget,
)
from longboat.scaling.correction import Correction, Room
from longboat.scaling.queueing import mix_of, replicas_for, step_s
from longboat.scaling.scaler import Scaler
from longboat.scaling.slo import SloRule
from longboat.scaling.time_model import TimeModel
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.scaled.scaled_fleet import ScaledFleet, ScaledResult
from longboat.simulator.scaled.scaled_run import simulate_scaled
from longboat.simulator.traces.trace_request import TraceRequest

OBJECTIVE = Objective(ttft_ms=2000.0, itl_ms=100.0)
SPEED = ReplicaSpeed(
    base_s=0.02, prompt_token_s=2e-4, sequence_s=5e-4, kv_token_s=2e-7, max_sequences=64, kv_tokens=128_000,
    step_tokens=2048,
)  # fmt: skip


def scaled(**changes: object) -> ScaledModel:
    values: dict[str, object] = {
        "name": "model", "target": SloTarget(objectives=(OBJECTIVE,)), "min_replicas": 1, "max_replicas": 30,
        "cold_start_s": 30.0, "speed": SPEED,
    }  # fmt: skip
    return ScaledModel(**{**values, **changes})  # type: ignore[arg-type]


def played(
    rate_at: Callable[[float], float], until_s: float, *, cold_s: float = 30.0, initial: int = 2, slower: float = 1.0,
    most: float = 20.0, as_reported: bool = False, **changes: object,
) -> ScaledResult:  # fmt: skip
    """Play requests of an uneven Poisson process. slower: what replicas take, over what the planner said"""
    draw, at_s, requests = random.Random(3), 0.0, []
    while (at_s := at_s + draw.expovariate(most)) < until_s:
        if draw.random() * most < rate_at(at_s):
            prompt = 50 + min(5000, int(draw.expovariate(1 / 1000)))
            requests.append(TraceRequest(at_s, prompt, 5 + int(draw.expovariate(1 / 200))))
    fleet = ScaledFleet(
        time=StepTime(
            base_s=0.02 * slower, prompt_token_s=2e-4 * slower, sequence_s=5e-4 * slower, kv_token_s=2e-7 * slower
        ),
        limits=EngineLimits(kv_blocks=8000, max_num_seqs=64, max_num_batched_tokens=2048, prefix_caching=False),
        objective=OBJECTIVE,
        initial=initial,
        cold_start_s=cold_s,
        as_reported=as_reported,
    )
    model = scaled(initial_replicas=initial, cold_start_s=cold_s, **changes)
    return simulate_scaled(fleet, iter(requests), Scaler([model]))


def test_steady_load_keeps_the_objective_and_starts_nothing_twice() -> None:
    result = played(lambda t: 6.0, 1500.0, initial=5)
    assert result.kept_share > 0.99
    assert result.starts <= 3
    assert 3 <= result.moments[-1].wanted <= 7


def test_what_gateways_report_is_enough_to_keep_the_objective() -> None:
    result = played(lambda t: 6.0, 600.0, initial=5, as_reported=True)
    assert result.kept_share > 0.99
    assert 3 <= result.moments[-1].wanted <= 7


def test_surge_is_answered_at_once_and_left_with_patience() -> None:
    result = played(lambda t: 15.0 if 300.0 <= t < 600.0 else 4.0, 1200.0, initial=4)
    wanted = {round(one.at_s): one.wanted for one in result.moments}
    assert wanted[330] >= 8
    assert wanted[640] >= 8
    assert wanted[1150] <= 8


def test_load_that_flaps_at_a_threshold_does_not_flap_replicas() -> None:
    result = played(lambda t: 5.6 if t % 120.0 < 60.0 else 4.2, 3600.0, initial=4)
    assert result.starts <= 12
    assert result.kept_share > 0.985


def test_replicas_that_are_slower_than_predicted_are_noticed() -> None:
    right = played(lambda t: 5.0, 1500.0, initial=4)
    slow = played(lambda t: 5.0, 1500.0, initial=4, slower=1.6)
    assert slow.moments[-1].wanted > right.moments[-1].wanted
    assert 1.3 < slow.decisions[-1].terms["correction"] < 2.2


def test_last_replica_leaves_after_idle_time_and_the_first_request_starts_one() -> None:
    target = SloTarget(objectives=(OBJECTIVE,), downscale_to_zero_delay_s=120.0)
    scaler = Scaler([scaled(target=target, min_replicas=0)], counts={"model": 1})
    counts = []
    for at in range(200):
        busy = at < 30
        scaler.observe(
            float(at),
            [ModelObservation(model="model", arrived=int(busy), running=int(busy), ready=1, lengths=((100, 10),))],
        )
        counts.append(scaler.decide(float(at))[0].replicas)
    assert counts[140] == 1
    assert counts[-1] == 0
    scaler.observe(201.0, [ModelObservation(model="model", arrived=1, waiting=1)])
    (decision,) = scaler.decide(201.0)
    assert decision.replicas == 1


def test_no_decision_is_below_what_is_needed_now() -> None:
    result = played(lambda t: 16.8 if t < 600.0 else 15.0, 1800.0, initial=20)
    fallen = [one for one in result.decisions if one.replicas < one.before]
    assert fallen
    assert all(one.replicas >= one.terms["needed"] for one in fallen if "needed" in one.terms)


def test_decision_names_the_rate_the_forecast_and_the_need() -> None:
    result = played(lambda t: 12.0, 400.0)
    grown = next(one for one in result.decisions if one.replicas > one.before)
    assert "requests/s, at most" in grown.reason
    assert {"rate", "forecast", "horizon_s", "correction", "needed", "held"} <= set(grown.terms)


@pytest.mark.parametrize("cold_s", [2.0, 240.0])
def test_replicas_that_start_count_as_capacity_to_come(cold_s: float) -> None:
    """A queue that waits for replicas does not ask for more and more of them."""
    result = played(lambda t: 4.0 if t < 300.0 else 14.0, 900.0, cold_s=cold_s, initial=4)
    assert max(one.wanted for one in result.moments) <= 24


def test_each_replica_starts_at_most_once_in_a_patience() -> None:
    """The bound on starts that docs/concepts/scaling.md states, under a load that jumps at random."""
    draw = random.Random(11)
    levels = [draw.choice((2.0, 5.0, 9.0, 14.0)) for _ in range(60)]
    result = played(lambda t: levels[int(t // 45.0) % 60], 2400.0, initial=4)
    started: dict[int, float] = {}
    for one in result.decisions:
        for number in range(one.before + 1, one.replicas + 1):
            assert one.at_s - started.get(number, -1e9) >= 140.0
            started[number] = one.at_s


def test_means_do_where_no_single_lengths_are_observed() -> None:
    scaler = Scaler([scaled()])
    for at in range(90):
        seen = ModelObservation(
            model="model", arrived=10, ended=10, prompt_tokens=11_000, output_tokens=2000, running=60, ready=2
        )
        scaler.observe(float(at), [seen])
        (decision,) = scaler.decide(float(at))
    assert 6 <= decision.replicas <= 12


def test_means_of_few_requests_are_not_taken_for_longer_prompts() -> None:
    """A second's mean is of the requests that ended in it: one of them says no more than one length."""
    draw, time = random.Random(4), TimeModel(scaled(), SloTarget(objectives=(OBJECTIVE,)))
    factors, prompts = [], []
    for at in range(1500):
        new = [100 + int(draw.expovariate(1 / 1000)) for _ in range(draw.choice((0, 1, 1, 2, 6)))]
        seen = ModelObservation(
            model="model", ended=len(new), prompt_tokens=sum(new), output_tokens=200 * len(new), ready=1
        )
        time.observe(float(at), seen, 2.0)
        prompts += new
        if at % 10 == 0 and at > 500:
            factors.append(time.heavier)
    assert set(factors) == {1.0}
    assert sum(prompt for prompt, _ in time._lengths.known) == pytest.approx(sum(prompts[-2000:]), rel=0.01)


def test_lengths_are_those_of_requests_that_ended_however_many_came() -> None:
    """Requests that came and wait have not reported their tokens yet."""
    decisions = []
    for arrived in (10, 1000):
        time = TimeModel(scaled(), SloTarget(objectives=(OBJECTIVE,)))
        seen = ModelObservation(
            model="model", arrived=arrived, ended=10, prompt_tokens=11_000, output_tokens=2000, ready=2
        )
        time.observe(0.0, seen, 10.0)
        decisions.append(time.needed(10.0))
        assert not time.knows_lengths, "short requests end first"
        time.observe(30.0, replace(seen, ended=0, prompt_tokens=0, output_tokens=0), 10.0)
        assert time.knows_lengths
    assert decisions[0] == decisions[1]


def test_first_measured_times_correct_little_and_many_correct_all() -> None:
    """The first times are those of replicas that fill."""
    correction, factors = Correction(), []
    for _ in range(400):
        correction.learn(2.0, 1.0)
        factors.append(correction.factor)
    assert factors[9] < 1.2
    assert factors == sorted(factors)
    assert factors[-1] == pytest.approx(2.0, rel=0.03)


def test_the_median_of_single_times_between_tokens_makes_no_replica_faster() -> None:
    """Most steps of a live fleet's engines compute no prompt beside the tokens; the mean is what was foreseen."""
    time = TimeModel(scaled(), SloTarget(objectives=(OBJECTIVE,)))
    lengths = ((1000, 200),) * 20
    mean_s = step_s(2.0, 20.0, mix_of(lengths, SPEED), SPEED)
    gaps = Quantiles(p50=600.0 * mean_s, p90=3e3 * mean_s, p95=4e3 * mean_s, p99=5e3 * mean_s)
    latency = Latency(priority=1, ended=2, itl_ms=gaps, itl_mean_ms=1e3 * mean_s)
    for at in range(100):
        seen = ModelObservation(
            model="model", arrived=2, ended=2, lengths=lengths, running=20, ready=1, latencies=(latency,)
        )
        time.observe(float(at), seen, 2.0)
    assert time.factor == pytest.approx(1.0)


def test_requests_that_no_replica_helps_ask_for_no_room() -> None:
    """Late requests that are late on any fleet leave room to give back; late ones that replicas would help do not."""
    factors = []
    for in_vain in (0.006, 0.0):
        room = Room()
        for at in range(2000):
            room.learn(float(at), 1000, 5 if in_vain else 8, 0.01, partial(float, in_vain))
        factors.append(room.factor)
    assert factors[0] < 1.0 < factors[1]


def test_room_that_was_too_small_is_not_tried_again_for_half_an_hour() -> None:
    room = Room()
    calm = partial(float, 0.0)

    def learn(begin_s: int, end_s: int, late: int) -> float:
        for at in range(begin_s, end_s, 30):
            room.learn(float(at), 1000, late, 0.01, calm)
        return room.factor

    too_small = learn(0, 600, 0)
    learn(600, 690, 300)
    assert learn(690, 3300, 0) > too_small
    assert learn(3300, 6000, 0) < too_small


def test_late_requests_that_chance_explains_ask_for_no_more_room() -> None:
    few, many = Room(), Room()
    few.learn(0.0, 400, 3, 0.01, partial(float, 0.0))
    many.learn(0.0, 40_000, 300, 0.01, partial(float, 0.0))
    assert few.factor == Room().factor < many.factor


def test_replicas_without_room_stay_wanted_after_the_delay_of_an_objective_too() -> None:
    target = SloTarget(objectives=(OBJECTIVE,), upscale_delay_s=20.0)
    scaler = Scaler([scaled(target=target, takes={"GPU": 1.0})], counts={"model": 1})
    found = []
    for at in range(100):
        seen = ModelObservation(model="model", arrived=10, ended=10, lengths=((1000, 200),) * 10, ready=1)
        scaler.observe(float(at), [seen])
        (decision,) = scaler.decide(float(at), {"GPU": 2.0 if at < 80 else 20.0})
        found.append((decision.replicas, decision.short > 0))
    first = found.index((2, True))
    assert first >= 20 and found[:first] == [(1, False)] * first
    assert found[first:80] == [(2, True)] * (80 - first)
    assert found[80][0] > 4 and not found[80][1]


@pytest.mark.parametrize(
    "target",
    [
        SloTarget(objectives=(OBJECTIVE,), upscale_delay_s=20.0),
        OngoingTarget(target_ongoing_requests=2, upscale_delay_s=20.0, look_back_period_s=1.0),
    ],
)
def test_an_order_right_after_a_rise_begins_the_delay_again(target: ScalingTarget) -> None:
    scaler = Scaler([scaled(target=target)], counts={"model": 1})
    load = ModelObservation(model="model", arrived=10, ended=10, running=12, lengths=((1000, 200),) * 10, ready=1)
    times = itertools.count()

    def decided(asked: int | None = None) -> int:
        now_s = float(next(times))
        scaler.observe(now_s, [replace(load, asked=asked)])
        return scaler.decide(now_s)[0].replicas

    assert any(decided() > 1 for _ in range(100)), "the load asks for more, after the delay"
    assert [decided(asked=1) for _ in range(10)] == [1] * 10
    assert [decided() for _ in range(20)] == [1] * 20
    assert decided() > 1


@pytest.mark.parametrize("classes", [((0, 90.0, 0), (2, 99.0, 2)), ((0, 99.0, 2), (2, 90.0, 0))])
def test_a_class_that_misses_its_objective_gets_room_whatever_the_others_do(
    classes: tuple[tuple[int, float, int], ...],
) -> None:
    """classes: priority, percentile, and late ones of 50 requests a second"""
    objectives = tuple(replace(OBJECTIVE, priority=priority, percentile=share) for priority, share, _ in classes)
    rule = SloRule(scaled(), SloTarget(objectives=objectives))
    for at in range(1800):
        ended = tuple(Latency(priority=priority, ended=50, late=late) for priority, _, late in classes)
        rule.observe(float(at), ModelObservation(model="model", latencies=ended))
    assert rule._room.factor > 1.1
    for at in range(1800, 6000):  # the class that missed its objective sends nothing any more
        ended = tuple(Latency(priority=priority, ended=50, late=0) for priority, _, late in classes if not late)
        rule.observe(float(at), ModelObservation(model="model", latencies=ended))
    assert rule._room.factor < 0.9


@pytest.mark.parametrize(("lasts_s", "starts"), [(5, False), (45, True)])
def test_a_need_that_is_over_long_before_a_replica_would_be_ready_starts_none(lasts_s: int, starts: bool) -> None:
    scaler = Scaler([scaled(cold_start_s=240.0)], counts={"model": 4})
    counts = []
    for at in range(1100):
        arrived = 20 if 1000 <= at < 1000 + lasts_s else 10
        lengths = ((1000, 200),) * arrived
        scaler.observe(float(at), [ModelObservation(model="model", arrived=arrived, ended=arrived, lengths=lengths)])
        counts.append(scaler.decide(float(at))[0].replicas)
    assert (max(counts[1000:]) > counts[999]) == starts


def test_the_first_seconds_do_not_decide_as_if_they_were_many() -> None:
    """Nine requests in two seconds, the shortest of which have ended, may be chance."""
    scaler = Scaler([scaled(cold_start_s=240.0)], counts={"model": 2})
    counts = []
    for at in range(6):
        scaler.observe(
            float(at), [ModelObservation(model="model", arrived=9, ended=1, lengths=((2000, 400),), ready=2)]
        )
        counts.append(scaler.decide(float(at))[0].replicas)
    assert counts == [2] * 6


def test_there_is_room_for_the_present_load_however_seldom_requests_are_late() -> None:
    """The room that was not needed is given back, and never so much that the newest level finds no replicas."""
    rule = SloRule(scaled(), SloTarget(objectives=(OBJECTIVE,)))
    good = Latency(priority=1, ended=20, late=0)
    seen = ModelObservation(
        model="model", seconds=1.0, arrived=20, ended=20, lengths=((1000, 200),) * 20, ready=20, latencies=(good,)
    )
    for at in range(2400):
        rule.observe(float(at), seen)
    terms = rule.want(2400.0, 20).terms
    mix = mix_of([(1000, 200)], SPEED)
    assert terms["room"] < 0.9
    assert terms["forecast"] == pytest.approx(20.0, rel=0.05)
    assert terms["needed"] == replicas_for(21.0, mix, SPEED, OBJECTIVE, least=1, most=30)
    assert terms["needed"] > replicas_for(terms["room"] * terms["forecast"], mix, SPEED, OBJECTIVE, least=1, most=30)


def test_longer_prompts_ask_for_replicas_before_they_fill_the_sample() -> None:
    """At 20 requests a second, the newest 250 of 2,000 are those of 13 s."""
    scaler = Scaler([scaled()], counts={"model": 10})
    draw, counts = random.Random(4), []
    for at in range(1030):
        mean = 1000 if at < 1000 else 1800
        lengths = tuple((20 + int(draw.expovariate(1.0 / mean)), 200) for _ in range(20))
        scaler.observe(float(at), [ModelObservation(model="model", arrived=20, ended=20, lengths=lengths)])
        counts.append(scaler.decide(float(at))[0].replicas)
    assert max(counts[1000:]) > counts[999] + 2


def test_prompts_that_cost_nothing_ask_for_no_division_by_zero() -> None:
    cached = ModelObservation(model="model", arrived=5, ended=5, lengths=((0, 10),) * 5, running=5, ready=1)
    scaler = Scaler([scaled()])
    for at in range(60):
        scaler.observe(float(at), [cached])
        (decision,) = scaler.decide(float(at))
    assert decision.replicas == 1


def test_cached_parts_of_prompts_are_read_by_each_step() -> None:
    """They are not computed, and lie in the KV cache as long as the sequence decodes."""
    speed = replace(SPEED, kv_token_s=2e-6)
    counts = []
    for cached in (0, 4000):
        time = TimeModel(scaled(speed=speed), SloTarget(objectives=(OBJECTIVE,)))
        seen = ModelObservation(
            model="model", arrived=10, ended=10, lengths=((200, 200),) * 10, prompt_tokens=10 * (200 + cached),
            cached_tokens=10 * cached,
        )  # fmt: skip
        for at in range(20):
            time.observe(float(at), seen, 10.0)
        counts.append(time.needed(20.0))
    assert counts[1] > counts[0] + 1


def test_late_requests_count_among_those_of_which_it_is_known() -> None:
    """Gateways know the newest responses: a late one of 32 is 3 %, and not one of 200."""
    rule = SloRule(scaled(), SloTarget(objectives=(OBJECTIVE,)))
    for at in range(600):
        latency = Latency(priority=1, ended=200, late=1, judged=32)
        rule.observe(float(at), ModelObservation(model="model", ended=200, latencies=(latency,)))
    assert rule._room.factor > 1.1


def test_cold_start_of_less_than_a_second_leaves_the_forecasts_their_errors() -> None:
    bounds = []
    for cold_s in (0.0, 0.3, 1.0):
        draw, scaler = random.Random(6), Scaler([scaled(cold_start_s=cold_s)])
        for at in range(400):
            seen = ModelObservation(
                model="model", arrived=draw.choice((1, 3, 9)), ended=4, lengths=((900, 150),) * 4, running=40,
                ready=2, cold_start_s=cold_s,
            )  # fmt: skip
            scaler.observe(float(at), [seen])
            (decision,) = scaler.decide(float(at))
        bounds.append(decision.terms["forecast"])
    assert bounds[0] == bounds[1] == bounds[2]


def test_replicas_that_a_person_asked_for_leave_with_patience_when_the_target_decides_again() -> None:
    scaler, counts = Scaler([scaled(initial_replicas=4)]), []
    for at in range(600):
        seen = ModelObservation(
            model="model", arrived=2, ended=2, lengths=((900, 150),) * 2, running=10, ready=4,
            asked=4 if 100 <= at < 300 else None,
        )  # fmt: skip
        scaler.observe(float(at), [seen])
        (decision,) = scaler.decide(float(at))
        counts.append(decision.replicas)
    assert set(counts[100:440]) == {4}, "140 s are its patience"
    assert counts[-1] < 4


def test_reasons_name_what_is_not_known_and_how_far_the_forecast_looks() -> None:
    scaler, reasons = Scaler([scaled(cold_start_s=30.0)]), []
    for at in range(60):
        seen = ModelObservation(
            model="model", arrived=2, ended=2, lengths=((900, 150),) * 2, running=10, ready=1, cold_start_s=40.0
        )
        scaler.observe(float(at), [seen])
        reasons += [one.reason for one in scaler.decide(float(at))]
    assert reasons[5] == "too few requests have ended to know their lengths"
    assert "within 30 s" in reasons[-1], "a cold start of 40 s is near enough to look as far as before"
