"""A clock that stands still while its process is stopped: what could not be heard then was not silent."""

from __future__ import annotations

from longboat.core.clock import Clock

__all__ = ("AwakeClock",)

STOPPED_S = 2.5
"""Its owner looks at the clock at least once a second. A later look means that the owner had no turn until then."""
COUNTED_S = 1.0
"""The part of such a pause that counts, so that time passes on a machine that is always too busy."""


class AwakeClock:
    """The time during which this process could hear others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_s = clock.monotonic_s()
        self._stopped_s = 0.0

    def monotonic_s(self) -> float:
        """Return seconds that pass only while the clock is looked at."""
        now_s = self._clock.monotonic_s()
        if (pause_s := now_s - self._looked_s) > STOPPED_S:
            self._stopped_s += pause_s - COUNTED_S
        self._looked_s = now_s
        return now_s - self._stopped_s

    def unix_s(self) -> float:
        """Return seconds since 1970."""
        return self._clock.unix_s()
