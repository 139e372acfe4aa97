"""The speed of a planned replica in the scaler's words."""

from __future__ import annotations

from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.plan.planned_replica import speed_of


def test_all_terms_of_busy_steps_are_the_scaler_s() -> None:
    time = StepTime(base_s=0.01, prompt_token_s=1e-4, sequence_s=1e-5, wake_s=0.2)
    limits = EngineLimits(kv_blocks=10, block_tokens=16, max_num_seqs=4, max_num_batched_tokens=64)
    speed = speed_of(time, limits)
    assert (speed.base_s, speed.prompt_token_s, speed.sequence_s) == (0.01, 1e-4, 1e-5)
    assert (speed.max_sequences, speed.kv_tokens, speed.step_tokens) == (4, 160, 64)
