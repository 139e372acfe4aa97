"""From an engine's counters to what it did since it was ready."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longboat.cluster.gang.meter import Meter
from longboat.engines.contract import EngineCounters

READY = EngineCounters(kv_blocks=512, block_tokens=32, itl_s=1.0, num_itl=50, ttft_s=2.0, num_ttft=3)


def test_nothing_is_known_before_the_engine_was_asked() -> None:
    assert Meter().actual(0) is None


def test_what_came_before_readiness_does_not_count() -> None:
    meter = Meter()
    meter.see(READY, 10.0)
    actual = meter.actual(7)
    assert actual is not None
    assert (actual.kv_blocks, actual.rank_bytes, actual.num_tokens, actual.itl_s) == (512, 7, 0, None)


def test_means_are_of_tokens_and_answers_since_then() -> None:
    meter = Meter()
    meter.see(READY, 10.0)
    more = {"itl_s": 21.0, "num_itl": 1050, "ttft_s": 4.0, "num_ttft": 13, "prompt_tokens": 500}
    meter.see(replace(READY, **more, generation_tokens=1010), 15.0)
    actual = meter.actual(0)
    assert actual is not None
    assert actual.num_tokens == 1000
    assert actual.itl_s == pytest.approx(0.02)
    assert actual.ttft_s == pytest.approx(0.2)
    assert (actual.prompt_tokens, actual.output_tokens) == (50, 101)
    assert actual.concurrency == pytest.approx(4.0)  # 20 s of waiting for tokens in 5 s


def test_concurrency_is_that_of_the_time_in_which_tokens_came() -> None:
    meter = Meter()
    meter.see(READY, 0.0)
    meter.see(replace(READY, itl_s=21.0, num_itl=1050), 5.0)
    meter.see(replace(READY, itl_s=21.0, num_itl=1050), 1000.0)
    actual = meter.actual(0)
    assert actual is not None
    assert actual.concurrency == pytest.approx(4.0)


def test_counters_that_fall_begin_anew() -> None:
    meter = Meter()
    meter.see(replace(READY, num_itl=500), 0.0)
    meter.see(READY, 5.0)
    actual = meter.actual(0)
    assert actual is not None
    assert actual.num_tokens == 0
