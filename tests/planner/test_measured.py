"""Predicted beside measured, and the rows that calibration reads."""

from __future__ import annotations

from typing import Any

import pytest

from longboat.core.states import EngineActual
from longboat.planner.predict.calibration.rows import read_rows
from longboat.planner.search.measured import merged_rows, pair_of, row_of

PLANNED: dict[str, Any] = {
    "model": "tiny",
    "source": "builtin:tiny",
    "hardware": "1 CPU of Desktop 2ch DDR5-5600",
    "quantization": "fp32",
    "tensor": 1,
    "pipeline": 1,
    "link": "",
    "hop": "",
    "users": 4.0,
    "kv_blocks": 512,
    "rank_bytes": 700_000_000,
    "curve": [[1, 0.002, 0.01], [2, 0.003, 0.02], [4, 0.005, 0.04]],
}


def actual(**given: Any) -> EngineActual:
    known = {"kv_blocks": 512, "block_tokens": 32, "rank_bytes": 600_000_000, "num_tokens": 900, "concurrency": 2.0}
    times = {"itl_s": 0.004, "ttft_s": 0.03, "prompt_tokens": 90.0, "output_tokens": 45.0}
    return EngineActual(**{**known, **times, **given})


def test_times_are_predicted_for_the_load_that_was_measured() -> None:
    pair = pair_of(PLANNED, [actual()])
    assert (pair.predicted_itl_s, pair.itl_s) == (0.003, 0.004)
    assert (pair.predicted_ttft_s, pair.ttft_s) == (0.02, 0.03)
    assert (pair.predicted_kv_blocks, pair.kv_blocks) == (512, 512)
    assert (pair.predicted_rank_bytes, pair.rank_bytes) == (700_000_000, 600_000_000)


def test_replicas_count_by_their_tokens() -> None:
    pair = pair_of(PLANNED, [actual(), actual(num_tokens=300, itl_s=0.008), actual(num_tokens=0, itl_s=None)])
    assert pair.num_tokens == 1200
    assert pair.itl_s == pytest.approx(0.005)


def test_nothing_measured_yet_shows_what_is_planned_for() -> None:
    pair = pair_of(PLANNED, [actual(num_tokens=0, itl_s=None, ttft_s=None)])
    assert pair.predicted_itl_s == 0.005
    assert pair.itl_s is None
    assert row_of(PLANNED, pair, engine="vllm", deployed="d") is None


def test_few_tokens_are_not_kept() -> None:
    assert row_of(PLANNED, pair_of(PLANNED, [actual(num_tokens=63)]), engine="vllm", deployed="d") is None


def row(concurrency: float = 2.0, deployed: str = "d", itl_s: float = 0.004) -> dict[str, str]:
    pair = pair_of(PLANNED, [actual(concurrency=concurrency, itl_s=itl_s)])
    found = row_of(PLANNED, pair, engine="vllm", deployed=deployed)
    assert found is not None
    return found


def test_a_kept_pair_is_a_row_that_calibration_reads() -> None:
    (read,) = read_rows(merged_rows("", [row()]), "measured.csv")
    assert read.group == ("builtin:tiny", "1 CPU of Desktop 2ch DDR5-5600", "vllm")
    assert (read.quantization, read.tensor, read.concurrency) == ("fp32", 1, 2.0)
    assert (read.prompt_tokens, read.output_tokens) == (100, 50)  # the longest, of which the mean is nine tenths
    assert (read.ttft_s, read.itl_s) == (0.03, 0.004)


def test_a_newer_pair_of_the_same_deployment_and_load_replaces_the_older() -> None:
    text = merged_rows("", [row(), row(concurrency=8.0), row(deployed="e")])
    again = merged_rows(text, [row(itl_s=0.006)])
    times = [one.itl_s for one in read_rows(again, "measured.csv")]
    assert times == [0.006, 0.004, 0.004]
