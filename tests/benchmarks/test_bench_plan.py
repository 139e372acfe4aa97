"""The planner's benchmark: what it judges, and the rows that it hands to ``longboat plan calibrate``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench_plan import LEARNED, TESTED, Check, row_of
from real_engine import FIRST_TOKEN, VOCABULARY, processes_of, prompt_of


def check(predicted: float, actual: float, limit: float | None) -> Check:
    return Check(what="x", predicted=predicted, actual=actual, unit="ms", limit=limit)


@pytest.mark.parametrize(
    ("predicted", "limit", "holds"),
    [(119.0, 0.2, True), (121.0, 0.2, False), (79.0, 0.2, False), (100.0, 0.0, True), (101.0, 0.0, False)],
)
def test_limit_is_a_share_of_what_was_measured(predicted: float, limit: float, holds: bool) -> None:
    assert check(predicted, 100.0, limit).holds is holds


def test_figure_without_a_limit_is_not_judged() -> None:
    assert check(500.0, 100.0, None).holds


def test_models_that_are_tested_are_none_of_those_that_taught() -> None:
    assert not set(LEARNED) & set(TESTED)


def test_row_says_split_and_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))
    row = row_of("builtin:tiny", tensor=2, link="100MbE")
    assert (row.tensor, row.pipeline, row.link, row.spread) == (2, 1, "100MbE", 0.0)
    assert Path(row.model).is_dir()


def test_prompts_begin_differently_and_hold_no_special_tokens() -> None:
    prompts = [prompt_of(64, number) for number in range(200)]
    assert len({tuple(prompt[:32]) for prompt in prompts}) == 200
    assert all(FIRST_TOKEN <= token < VOCABULARY for prompt in prompts for token in prompt)


def test_processes_of_one_without_children_is_itself() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert processes_of(process.pid) == [process.pid]
        finally:
            process.kill()
