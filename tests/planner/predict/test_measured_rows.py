"""Predictions of groups that calibration did not see, against measured rows: `LONGBOAT_TEST_DATA` is their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longboat.cli.plan.plan_measured import read_samples
from longboat.planner.predict.calibration.evaluate import evaluate_folds
from longboat.planner.predict.constants import Calibration

ROWS = Path(os.environ.get("LONGBOAT_TEST_DATA", "")) / "measured_silicon.csv"
MAX_ITL_ERROR, MAX_TTFT_ERROR = 0.12, 0.25

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.skipif(not ROWS.is_file(), reason="LONGBOAT_TEST_DATA names no folder with measured_silicon.csv")
@pytest.mark.parametrize("salt", ["", "a", "b", "c"])
def test_each_half_of_the_groups_is_predicted_by_the_other(salt: str) -> None:
    samples, skipped = read_samples(ROWS, (), None)
    assert not skipped
    for fold in evaluate_folds(samples, Calibration(), salt).folds:
        assert fold.itl_median_abs_error <= MAX_ITL_ERROR
        assert fold.ttft_median_abs_error <= MAX_TTFT_ERROR
