"""The phases of an engine's start: found in its log, and how long a gang spent in each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from longboat.core.states import Phase

__all__ = ("PhaseClock", "follow_phases")

FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 0.1, 2.0, 1.05
"""A start of a second is seen in its parts, and one of an hour costs a look every two seconds."""

LAST = Phase.WARMING
"""The last phase that a log can tell of: whether the engine serves is found out by asking it."""


async def follow_phases(
    log: Path, phase_of: Callable[[str], Phase | None], on_phase: Callable[[Phase], None], is_over: Callable[[], bool]
) -> None:
    """Read ``log`` as it grows and call ``on_phase`` with each phase found, until the last one came or ``is_over``.

    phase_of: the phase that a line of the log tells of, if any
    """
    position, pause_s = 0, FIRST_PAUSE_S
    while not is_over():
        text, position = await asyncio.to_thread(_read_from, log, position)
        found = [phase for line in text.splitlines() if (phase := phase_of(line)) is not None]
        for phase in found:
            on_phase(phase)
        if LAST in found:
            return
        pause_s = FIRST_PAUSE_S if found else min(pause_s * GROWTH, LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s)


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

    def __init__(self) -> None:
        self.phase = Phase.PLACING
        self._since_s = time.monotonic()
        self._seconds: dict[str, float] = {}

    def enter(self, phase: Phase) -> None:
        """Begin the next phase."""
        self._seconds = self.seconds()
        self.phase, self._since_s = phase, time.monotonic()

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase until now."""
        return {**self._seconds, self.phase.value: round(time.monotonic() - self._since_s, 3)}
