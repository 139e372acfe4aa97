"""The planner's benchmark: what it judges, and the rows that it hands to ``longboat plan calibrate``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench_plan import HEADER, LEARNED, SPLIT_LEARNED, SPLIT_MODEL, TESTED, Check, row_text
from real_engine import FIRST_TOKEN, SPREAD, VOCABULARY, Answer, closed_loop, processes_of, prompt_of

from longboat.planner.predict.calibration.rows import read_rows


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
    assert SPLIT_LEARNED != SPLIT_MODEL


def test_row_says_split_and_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))
    lines = [row_text("builtin:tiny", split=(2, 1), link="100MbE"), row_text("builtin:tiny", concurrency=4)]
    split, alone = read_rows("\n".join([HEADER, *lines]), "test")
    assert (split.tensor, split.pipeline, split.link, split.spread) == (2, 1, "100MbE", 0.0)
    assert (alone.tensor, alone.concurrency, alone.link, alone.spread) == (1, 4.0, "", SPREAD)
    assert Path(split.model).is_dir()


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


class FakeApi:
    """Notes what it is asked; answers take no time."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def ask(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        self.asked.append((len(prompt), max_tokens))
        return Answer(ttft_s=len(prompt) / 1e3, itl_s=0.002)


@pytest.mark.parametrize(("spread", "num_lengths"), [(0.0, 1), (0.2, 18)])
def test_every_client_sends_its_waves_of_lengths_that_differ_as_told(spread: float, num_lengths: int) -> None:
    api = FakeApi()
    told = {"concurrency": 3, "prompt_tokens": 500, "output_tokens": 40, "waves": 6, "seed": 7, "spread": spread}
    mean = closed_loop(api, **told)  # type: ignore[arg-type]
    assert len(api.asked) == 18
    assert len(set(api.asked)) == num_lengths
    assert all(
        500 * (1 - spread) <= prompt <= 500 and 40 * (1 - spread) <= answer <= 40 for prompt, answer in api.asked
    )
    assert mean.ttft_s == pytest.approx(sum(prompt for prompt, _ in api.asked) / 18e3)
