"""Seconds that a replica spent in its phases, as people see them."""

from __future__ import annotations

from cli.cli_builders import replica
from longboat.cli.shared.tables import phase_times, resume_lines
from longboat.core.states import Phase, ResumeLevel


def test_the_running_phase_grows_between_announcements() -> None:
    state = replica(phase=Phase.LOADING, phase_s={"placing": 1.0, "loading": 2.0}, announced_at_s=100.0)
    assert phase_times(state, 100.0) == "placing 1.0 · loading 2.0"
    assert phase_times(state, 100.7) == "placing 1.0 · loading 2.7"


def test_serving_and_phases_of_no_time_are_left_out() -> None:
    state = replica(phase_s={"placing": 0.01, "warming": 0.5, "ready": 90.0}, announced_at_s=100.0)
    assert phase_times(state, 105.0) == "warming 0.5"


def test_a_reason_for_a_low_level_of_resuming_is_told_once_for_each_model() -> None:
    why = {"resume": ResumeLevel.REPLAY, "resume_detail": "carried: seeded differs"}
    told = resume_lines([replica(**why), replica(**why), replica(resume=ResumeLevel.CARRIED, resume_detail="proved")])
    assert len(told) == 1
    assert "replay: carried: seeded differs" in told[0]
