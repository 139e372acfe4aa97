"""The phase of a gang, and the seconds that it spent in each."""

from __future__ import annotations

import time

from longboat.core.states import Phase

__all__ = ("PhaseClock",)


class PhaseClock:
    """Starts in ``Phase.PLACING``."""

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
