"""One run of a rule on a load."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from longboat.core.scaling import FixedTarget, ModelObservation, ScaledModel, ScalingTarget, SloTarget
from longboat.scaling.rule import Rule, Want
from longboat.scaling.scaler import Scaler, rule_for
from longboat.simulator.plan.planned_replica import speed_of
from longboat.simulator.scaled.scaled_fleet import ScaledFleet, ScaledResult
from longboat.simulator.scaled.scaled_run import simulate_scaled
from longboat.simulator.traces.trace_request import TraceRequest
from scaling_bench.loads import Load

__all__ = ("MOST", "Planned", "bears", "run_ours", "run_rule")

MOST = 60
"""Replicas at most, in every run."""


@dataclass
class Planned(Rule):
    """A rule that was known before: counts for each second."""

    counts: list[int]
    begin_s: float

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Ignore the load."""

    def want(self, now_s: float, current: int) -> Want:
        """Return the count of this second."""
        return Want(replicas=self.counts[min(len(self.counts) - 1, round(now_s - self.begin_s))], reason="planned")


def run_rule(load: Load, make: Callable[[ScaledModel], Rule], cold_start_s: float, initial: int) -> ScaledResult:
    """Play the load under a rule."""
    return _run(load, make, cold_start_s, initial, FixedTarget())


def run_ours(load: Load, cold_start_s: float, initial: int, *, as_reported: bool = False) -> ScaledResult:
    """Play the load under the scaler's own rule for objectives."""
    target = SloTarget(objectives=(load.objective,))
    return _run(load, rule_for, cold_start_s, initial, target, as_reported=as_reported)


def _run(
    load: Load, make: Callable[[ScaledModel], Rule], cold_s: float, initial: int, target: ScalingTarget,
    *, as_reported: bool = False,
) -> ScaledResult:  # fmt: skip
    fleet = ScaledFleet(
        time=load.time,
        limits=load.limits,
        objective=load.objective,
        initial=initial,
        cold_start_s=cold_s,
        begin_s=load.begin_s,
        tick_s=load.tick_s,
        as_reported=as_reported,
    )
    model = ScaledModel(
        name=fleet.model,
        target=target,
        min_replicas=1,
        max_replicas=MOST,
        initial_replicas=initial,
        cold_start_s=cold_s,
        speed=speed_of(load.time, load.limits),
    )
    return simulate_scaled(fleet, iter(load.requests), Scaler([model], make_rule=make))


def bears(load: Load) -> float:
    """Return the requests under way that each of eight replicas bears within the objective, under even arrivals."""
    draw = random.Random(1)
    lengths = [(one.prompt_tokens, one.output_tokens) for one in load.requests]
    low, high, found = 0.1, 200.0, 1.0
    for _ in range(9):
        rate, at_s, requests = (low * high) ** 0.5, 0.0, []
        while len(requests) < 4000:
            at_s += draw.expovariate(rate)
            requests.append(TraceRequest(at_s, *lengths[draw.randrange(len(lengths))]))
        one = Load(load.name, requests, load.time, load.limits, load.objective)
        result = run_rule(one, lambda model: Planned([8], load.begin_s), 0.0, 8)
        if result.kept_share >= 0.99:
            low = rate
            half = result.moments[len(result.moments) // 2 :]
            found = sum(moment.running + moment.waiting for moment in half) / len(half) / 8.0
        else:
            high = rate
    return max(1.0, found)
