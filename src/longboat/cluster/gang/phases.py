"""The phases of an engine's start: found in its log, and how long a gang spent in each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from longboat.core.states import START_PHASES, Phase

__all__ = ("LogPhases", "PhaseClock", "outlasted")

FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 0.1, 2.0, 1.05
"""A start of a second is seen in its parts, and one of an hour costs a look every two seconds."""

LIMIT_LOOK_S = 1.0

LONGEST_WAIT_S = 10.0
"""A wait for the next phase returns after this time: a supervisor that needs no phases any more does not ask again."""


class LogPhases:
    """The phases of one rank's start, as its log tells of them while it grows.

    A log cannot tell that the engine serves, so it is read only while a supervisor waits for the next phase.
    """

    def __init__(self, phase_of: Callable[[str], Phase | None]) -> None:
        """phase_of: returns the phase that a line of the log tells of, if any"""
        self.log: Path | None = None  # None: the rank is not started yet
        self.phase = Phase.STARTING
        self._phase_of = phase_of
        self._position = 0

    async def after(self, known: Phase, is_over: Callable[[], bool], wait_s: float = LONGEST_WAIT_S) -> Phase:
        """Return the phase when it is not ``known`` any more, or is over, or after ``wait_s``."""
        pause_s, end_s = FIRST_PAUSE_S, time.monotonic() + wait_s
        while True:
            await self._read()
            if self.phase is not known or is_over() or time.monotonic() >= end_s:
                return self.phase
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * GROWTH, LONGEST_PAUSE_S)

    async def _read(self) -> None:
        if self.log is None:
            return
        text, self._position = await asyncio.to_thread(_read_from, self.log, self._position)
        found = [phase for line in text.splitlines() if (phase := self._phase_of(line)) is not None]
        self.phase = found[-1] if found else self.phase


async def outlasted(limit_s: Callable[[], float | None]) -> float:
    """Return the limit once this call has lasted for as long; the limit may change meanwhile. None: there is none."""
    began_s = time.monotonic()
    while (limit := limit_s()) is None or time.monotonic() - began_s < limit:  # noqa: ASYNC110 # time passes by itself
        await asyncio.sleep(LIMIT_LOOK_S)
    return limit


def _read_from(path: Path, position: int) -> tuple[str, int]:
    """Return the whole lines from ``position`` on, and where the next one begins."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(1 << 20)
    except FileNotFoundError:
        return "", position
    whole = data.rfind(b"\n") + 1
    return data[:whole].decode(errors="replace"), position + whole


class PhaseClock:
    """The phase of a gang, and the seconds that it spent in each; it starts in ``Phase.PLACING``."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.phase = Phase.PLACING
        self.detail = ""  # what the gang waits for, or why it failed
        self._on_change = on_change
        self._since_s = time.monotonic()
        self._seconds: dict[str, float] = {}

    def enter(self, phase: Phase) -> None:
        """Begin the next phase, or one that was there before."""
        self._seconds = self.seconds()
        self.phase, self._since_s = phase, time.monotonic()
        self._on_change()

    def enter_found(self, phase: Phase) -> None:
        """Enter a phase of the start that a log tells of, unless the start is over."""
        if self.phase in START_PHASES and self.phase is not phase:
            self.enter(phase)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase until now."""
        own_s = self._seconds.get(self.phase.value, 0.0) + time.monotonic() - self._since_s
        return {**self._seconds, self.phase.value: round(own_s, 3)}
