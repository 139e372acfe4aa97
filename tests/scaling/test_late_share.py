"""Counts in closed form: more load never needs fewer, slower replicas need more, and the twin agrees."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.scaling import FixedTarget, Objective, ReplicaSpeed, ScaledModel
from longboat.scaling.queueing import heavier, late_share, mix_of, replicas_for, slower
from longboat.scaling.scaler import Scaler
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.scaled.scaled_fleet import ScaledFleet
from longboat.simulator.scaled.scaled_run import simulate_scaled
from longboat.simulator.traces.trace_request import TraceRequest

SPEED = ReplicaSpeed(
    base_s=0.02, prompt_token_s=2e-4, sequence_s=5e-4, kv_token_s=2e-7, max_sequences=64, kv_tokens=128_000,
    step_tokens=2048,
)  # fmt: skip
OBJECTIVE = Objective(ttft_ms=2000.0, itl_ms=100.0)
DRAW = random.Random(5)
LENGTHS = tuple((max(20, int(DRAW.expovariate(1 / 1100))), max(4, int(DRAW.expovariate(1 / 200)))) for _ in range(500))
MIX = mix_of(LENGTHS, SPEED)


def count(rate: float, **changes: float) -> int:
    speed = slower(SPEED, changes.get("slower", 1.0))
    objective = Objective(ttft_ms=changes.get("ttft_ms", 2000.0), itl_ms=changes.get("itl_ms", 100.0))
    return replicas_for(rate, mix_of(LENGTHS, speed), speed, objective, least=1, most=1000)


@given(st.floats(0.1, 300.0), st.floats(1.0, 1.5))
def test_more_load_and_slower_replicas_never_need_fewer(rate: float, more: float) -> None:
    assert count(rate) <= count(rate * more)
    assert count(rate) <= count(rate, slower=more)


def test_stricter_objectives_need_more() -> None:
    assert count(40.0, itl_ms=60.0) > count(40.0, itl_ms=100.0) > count(40.0, itl_ms=300.0)
    assert count(3.0, ttft_ms=1500.0) >= count(3.0, ttft_ms=8000.0)


def test_prompts_that_are_hopeless_do_not_ask_for_all_replicas() -> None:
    """A prompt of 30,000 tokens takes 6 s on an idle replica: no count helps it."""
    mix = mix_of((*LENGTHS[:180], *[(30_000, 10)] * 10), SPEED)
    assert late_share(1.0, 500, mix, SPEED, OBJECTIVE) > 0.01
    assert replicas_for(4.0, mix, SPEED, OBJECTIVE, least=1, most=500) < 30


@pytest.mark.parametrize("rate", [3.0, 12.0])
def test_count_keeps_the_objective_in_the_twin_and_far_fewer_do_not(rate: float) -> None:
    replicas = count(rate)
    assert _kept(rate, replicas + 1) >= 0.99
    assert _kept(rate, max(1, replicas // 2)) < 0.9


def _kept(rate: float, replicas: int) -> float:
    draw, at_s, requests = random.Random(7), 0.0, []
    for _ in range(1500):
        at_s += draw.expovariate(rate)
        prompt, output = LENGTHS[draw.randrange(len(LENGTHS))]
        requests.append(TraceRequest(at_s, min(prompt, 6000), output))
    fleet = ScaledFleet(
        time=StepTime(base_s=0.02, prompt_token_s=2e-4, sequence_s=5e-4, kv_token_s=2e-7),
        limits=EngineLimits(kv_blocks=8000, max_num_seqs=64, max_num_batched_tokens=2048, prefix_caching=False),
        objective=OBJECTIVE,
        initial=replicas,
    )
    model = ScaledModel(
        name="model", target=FixedTarget(), min_replicas=replicas, max_replicas=replicas, initial_replicas=replicas
    )
    return simulate_scaled(fleet, iter(requests), Scaler([model])).kept_share


@pytest.mark.parametrize("near", [1, 4, 9, 500])
def test_count_does_not_depend_on_where_its_search_begins(near: int) -> None:
    for rate in (0.5, 6.0, 9.0, 60.0):
        assert replicas_for(rate, MIX, SPEED, OBJECTIVE, least=1, most=100, near=near) == count(rate)
    assert replicas_for(60.0, MIX, SPEED, OBJECTIVE, least=1, most=3, near=near) == 3


@pytest.mark.parametrize("near", [1, 2, 3, 5, 6])
def test_count_that_twice_as_many_would_hardly_relieve_is_not_taken_for_one_that_cannot_be_helped(near: int) -> None:
    """One replica is late with every request, two with 86 %, five with the 5 % whose prompts are too long."""
    draw = random.Random(11)
    lengths = tuple(
        (max(20, int(draw.lognormvariate(8.5, 1.2))), max(4, int(draw.expovariate(1 / 300)))) for _ in range(300)
    )
    speed = ReplicaSpeed(
        base_s=0.02, prompt_token_s=3e-5, prompt_pair_s=2e-10, sequence_s=4e-4, kv_token_s=3e-8, max_sequences=64,
        kv_tokens=960_000, step_tokens=2048,
    )  # fmt: skip
    mix, objective = mix_of(lengths, speed), Objective(ttft_ms=1500.0)
    for rate in [2.8 + 0.01 * step for step in range(100)]:
        assert replicas_for(rate, mix, speed, objective, least=1, most=30, near=near) >= 3


def test_newest_prompts_count_as_far_as_chance_does_not_explain_them() -> None:
    draw = random.Random(8)

    def drawn(mean: float, count: int) -> list[tuple[int, int]]:
        return [(max(20, int(draw.expovariate(1.0 / mean))), 100) for _ in range(count)]

    def factor(lengths: list[tuple[int, int]], least: float = 0.0) -> float:
        return heavier(lengths, mix_of(lengths, SPEED), SPEED, least=least)

    calm = drawn(1000.0, 2000)
    assert factor(calm) == 1.0
    longer = [*calm[250:], *drawn(2000.0, 250)]
    assert 1.6 < factor(longer) < 2.0  # 2,000 over 1,125 are well beyond chance, and count nearly whole
    assert factor(longer) > factor(longer, least=300.0) > 1.0
    assert factor(longer, least=1001.0) == 1.0
    assert factor([*calm[250:], *drawn(500.0, 250)]) == 1.0  # shorter ones may not stay
    assert factor([*calm[1601:], *drawn(3000.0, 100)]) == 1.0  # fewer than 500 say nothing
