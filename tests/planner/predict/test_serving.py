"""Throughput of a replica whose cache is full: requests that wait cost it nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.planner.memory.engine import engine_traits
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.constants import Measured
from longboat.planner.predict.deployment import Deployment, Stage
from longboat.planner.predict.load import Load
from longboat.planner.predict.machine import machine_of
from longboat.planner.predict.serving import Prediction, predict

LIBRARY = built_in_library()
ROOM = 40.0


def predicted(users: float, ttft_factor: float) -> Prediction:
    """Predict Qwen3-32B on an H100 whose cache holds ``ROOM`` requests, with a measured factor of the TTFT."""
    shape, machine = (
        shape_of_entry(LIBRARY.models.find("Qwen3-32B")),
        machine_of(LIBRARY.accelerators.find("H100")),
    )
    stage = Stage(num_layers=len(shape.layers), machine=machine)
    deployment = Deployment(shape=shape, engine=engine_traits("vllm"), stages=(stage,))
    group = Measured(num_rows=9, itl_factor=1.1, ttft_factor=ttft_factor, here=False)
    calibration = replace(built_in_calibration(), groups={(shape.name, machine.name, "vllm"): group})
    load = Load(concurrency=users, prompt_tokens=1024, output_tokens=256)
    return predict(deployment, load, calibration, max_sequences=ROOM)


@pytest.mark.parametrize("ttft_factor", [0.6, 1.0, 1.7])
def test_throughput_does_not_fall_when_more_users_wait(ttft_factor: float) -> None:
    full = predicted(ROOM, ttft_factor).total_tokens_per_s.value
    for users in (64, 1000, 1_000_000):
        assert predicted(users, ttft_factor).total_tokens_per_s.value == pytest.approx(full, rel=1e-6)


def test_users_who_wait_see_their_first_token_later() -> None:
    ttfts = [predicted(users, 1.3).ttft_s.value for users in (40, 64, 1000)]
    assert ttfts == sorted(ttfts)
    assert ttfts[-1] > 10 * ttfts[0]
