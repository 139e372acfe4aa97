"""Tests of simulated time."""

from __future__ import annotations

import heapq
import math

from hypothesis import given
from hypothesis import strategies as st
from twin_fleets import LIMITS, TIME

from longboat.routing.prefixes.prompt import Prompt
from longboat.simulator.engine.engine import SimEngine
from longboat.simulator.engine.job import Job
from longboat.simulator.results.histogram import Histogram
from longboat.simulator.timeline import Timeline


class Listener:
    """Notes the jobs of an engine that end."""

    def __init__(self) -> None:
        self.ended_jobs: list[str] = []

    def first_token(self, job: Job, now_s: float) -> None: ...
    def ended(self, job: Job, now_s: float) -> None:
        self.ended_jobs.append(job.prompt.key)

    def gaps(self, first_s: float, growth_s: float, steps: int, sequences: int) -> None: ...


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=60))
def test_the_earliest_action_happens_next(does: list[int | None]) -> None:
    timeline = Timeline()
    idle = SimEngine(TIME, LIMITS, timeline, Listener())
    coming: list[float] = []
    for time_s in [*does, *([None] * len(does))]:
        if time_s is not None:
            timeline.at(float(time_s), idle)
            heapq.heappush(coming, float(time_s))
        elif coming:
            timeline.step()
            assert timeline.now_s == heapq.heappop(coming)
        assert len(timeline) == len(coming)
        assert timeline.next_s == (coming[0] if coming else math.inf)


@given(st.lists(st.integers(1, 4), max_size=40))
def test_actions_of_equal_times_happen_in_the_order_in_which_they_were_added(slowness: list[int]) -> None:
    timeline, listener = Timeline(), Listener()
    for number, times in enumerate(slowness):
        engine = SimEngine(TIME, LIMITS, timeline, listener, float(times))
        engine.submit(Job(Prompt(f"{number}", 10), 1, 0.0), 0.0)
    while len(timeline):
        timeline.step()
    assert listener.ended_jobs == [f"{at}" for at in sorted(range(len(slowness)), key=slowness.__getitem__)]


@given(st.lists(st.tuples(st.floats(0.0, 1e4), st.integers(1, 50)), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_a_quantile_is_near_the_value_of_its_rank(counted: list[tuple[float, int]], part: float) -> None:
    histogram = Histogram()
    for value, count in counted:
        histogram.add(value, count)
    values = sorted(value for value, count in counted for _ in range(count))
    exact = values[math.ceil(part * len(values) - 1e-9) - 1]
    assert math.isclose(histogram.quantile(part), max(exact, 1e-7), rel_tol=0.003)
    points = histogram.points(10_000)
    assert points[-1][1] == 1.0 and points == sorted(points)
