"""Waiting of requests that arrive at random: against textbook values, laws, and what a plan says."""

from __future__ import annotations

from math import inf

import pytest
from test_sizing import one_plan

from longboat.planner.compare.arrivals import Arrivals, Queue, erlang_c, queue_of
from longboat.planner.predict.calibration.calibration_file import built_in_calibration


def queue(rate: float, burstiness: float = 1.0) -> Queue:
    return queue_of(one_plan(), Arrivals(rate=rate, burstiness=burstiness), built_in_calibration())


def most() -> float:
    return 1.0 / queue(1.0).utilization


@pytest.mark.parametrize(
    ("servers", "load", "share"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (5, 4.0, 0.5541), (10, 8.0, 0.4092), (3, 3.0, 1.0)]
)
def test_erlangs_c_is_that_of_tables(servers: int, load: float, share: float) -> None:
    assert erlang_c(servers, load) == pytest.approx(share, abs=1e-3)


def test_wait_is_not_negative_for_independent_arrivals_and_grows_with_the_rate() -> None:
    top = most()
    waits = [queue(share * top).wait_s for share in (0.1, 0.5, 0.8, 0.9, 0.95, 0.99)]
    assert waits == sorted(waits)
    assert waits[0] >= 0
    assert waits[-1] > waits[0]


@pytest.mark.parametrize("share", [0.3, 0.9, 0.98])
def test_wait_grows_with_burstiness(share: float) -> None:
    rate = share * most()
    waits = [queue(rate, burstiness).wait_s for burstiness in (0.0, 1.0, 4.0, 16.0)]
    assert waits == sorted(waits)
    assert waits[-1] > waits[1]


def test_queue_grows_without_end_where_more_arrive_than_are_served() -> None:
    found = queue(1.01 * most())
    assert found.wait_s == inf
    assert found.utilization == pytest.approx(1.01)


def test_room_is_what_the_replica_runs_at_once() -> None:
    (group,) = one_plan().groups
    assert 1 <= queue(1.0).room <= 1.5 * group.fit.max_sequences
