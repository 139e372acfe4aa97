"""The gateway benchmark: its arithmetic, and that engine, relay and load understand each other."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from gateway_bench.figures import Figure, ratio
from gateway_bench.part_connections import lag_quantile
from gateway_bench.processes import cpu_s, marked
from gateway_bench.stand import Stand
from gateway_bench.targets import BARE, DIRECT


def test_ratio_is_taken_round_by_round() -> None:
    found = ratio([1.0, 20.0, 3.0], [2.0, 40.0, 6.0])
    assert found is not None
    assert (found.low, found.middle, found.high) == (0.5, 0.5, 0.5)


def test_ratio_interval_lies_within_the_rounds() -> None:
    found = ratio([1.0, 2.0, 3.0, 4.0, 5.0], [2.0] * 5)
    assert found is not None
    assert 0.5 <= found.low <= found.middle <= found.high <= 2.5
    assert found.low < found.high


def test_ratio_to_nothing_is_none() -> None:
    assert ratio([1.0], [0.0]) is None
    assert ratio([], []) is None


@pytest.mark.parametrize(("value", "limit", "holds"), [(1.0, 1.0, True), (1.1, 1.0, False), (1.0, None, None)])
def test_figure_holds_up_to_its_limit(value: float, limit: float | None, holds: bool | None) -> None:
    assert Figure(name="x", value=value, unit="", limit=limit).holds is holds


def test_figure_without_a_value_does_not_hold() -> None:
    assert Figure(name="x", value=float("nan"), unit="", limit=1.0).holds is False


def test_lag_quantile_counts_only_what_came_in_between() -> None:
    before = Counter({0.001: 100, 0.05: 200, float("inf"): 200})
    after = Counter({0.001: 100, 0.05: 299, float("inf"): 300})
    assert lag_quantile(before, after, 0.99) == 0.05
    assert lag_quantile(before, after, 0.999) == float("inf")
    assert lag_quantile(after, after, 0.99) is None


def test_load_gets_right_answers_directly_and_through_the_relay() -> None:
    with Stand() as stand:
        stand.mock_engines(ttft_ms=1.0, itl_ms=1.0)
        for target, words in ((DIRECT, ("--rate", 200)), (BARE, ("--chunks", 3)), (BARE, ("--whole",))):
            running = stand.start(target)
            assert running is not None
            result = stand.load(running, "--clients", 4, "--requests", 20, *words)
            assert (result["requests"], result["failures"]) == (20, {})
            assert result["ttft_s"]["p50"] > 0.001
            assert (result["cpu_s"] > 0) == (running.proxy is not None)


def test_stand_leaves_no_process_behind() -> None:
    with Stand() as stand:
        stand.mock_engines(count=1)
        mark = stand.engines[0].mark
        pids = marked(mark)
        assert pids and cpu_s(pids) > 0
    assert marked(mark) == []
