"""An engine's log is followed while a supervisor waits for the next phase, and phases add up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longboat.cluster.gang.phases import LogPhases, PhaseClock
from longboat.core.states import Phase
from longboat.engines.vllm.adapter import VllmAdapter

PATIENCE_S = 30.0


def never() -> bool:
    return False


def vllm_phases(log: Path) -> LogPhases:
    phases = LogPhases(VllmAdapter().phase_of)
    phases.log = log
    return phases


async def test_the_next_phase_is_waited_for_as_the_log_grows(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("hello\nStarting to load model /m\nLoading weights to")
    phases = vllm_phases(log)
    async with asyncio.timeout(PATIENCE_S):
        assert await phases.after(Phase.STARTING, never) is Phase.LOADING
        coming = asyncio.create_task(phases.after(Phase.LOADING, never))
        with log.open("a") as file:
            file.write("ok 0.01 seconds\nModel loading took 1.2 GiB memory\n")
        assert await coming is Phase.WARMING


async def test_compiling_may_follow_and_precede_warming(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    phases, phase, seen = vllm_phases(log), Phase.STARTING, list[Phase]()
    for line in (
        "Starting to load model /m...",
        "Loading weights took 0.01 seconds",
        "Warming up model for the compilation...",
        "[backbone] saved AOT compiled function to /c/model",
        "Warming up done.",
    ):
        with log.open("a") as file:
            file.write(line + "\n")
        phase = await phases.after(phase, never, wait_s=0.0)
        seen.append(phase)
    assert seen == [Phase.LOADING, Phase.WARMING, Phase.COMPILING, Phase.WARMING, Phase.WARMING]


async def test_a_wait_ends_with_the_rank_and_after_some_time(tmp_path: Path) -> None:
    phases, looks = vllm_phases(tmp_path / "there-is-none.log"), iter([False, False, True])
    async with asyncio.timeout(PATIENCE_S):
        assert await phases.after(Phase.STARTING, lambda: next(looks)) is Phase.STARTING
        assert await phases.after(Phase.STARTING, never, wait_s=0.2) is Phase.STARTING
        assert await LogPhases(VllmAdapter().phase_of).after(Phase.STARTING, never, wait_s=0.0) is Phase.STARTING


def test_a_phase_that_comes_twice_is_counted_whole() -> None:
    clock = PhaseClock()
    clock._since_s -= 1.0
    for phase, lasted_s in ((Phase.WARMING, 2.0), (Phase.COMPILING, 30.0), (Phase.WARMING, 3.0), (Phase.READY, 9.0)):
        clock.enter(phase)
        clock._since_s -= lasted_s
    assert {phase: round(seconds) for phase, seconds in clock.seconds().items()} == {
        "placing": 1,
        "warming": 5,
        "compiling": 30,
        "ready": 9,
    }
