"""An engine's log is followed while it starts, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from longboat.cluster.gang.phases import follow_phases
from longboat.core.states import Phase
from longboat.engines.fake import FakeAdapter


async def follow(log: Path, on_phase: Callable[[Phase], None], is_over: Callable[[], bool] = lambda: False) -> None:
    async with asyncio.timeout(30):
        await follow_phases(log, FakeAdapter().phase_of, on_phase, is_over)


async def test_following_ends_with_the_last_phase_that_a_log_can_tell_of(tmp_path: Path) -> None:
    log, told = tmp_path / "rank0.log", list[Phase]()

    def on_phase(phase: Phase) -> None:
        told.append(phase)
        with log.open("a") as file:
            file.write("ming tiny\n")

    log.write_text("hello\nphase=loading tiny\nphase=war")
    await follow(log, on_phase)
    assert told == [Phase.LOADING, Phase.WARMING]


async def test_following_ends_with_the_rank(tmp_path: Path) -> None:
    told, looks = list[Phase](), iter([False, False, True])
    await follow(tmp_path / "there-is-none.log", told.append, lambda: next(looks))
    assert told == []
