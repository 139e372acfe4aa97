"""Decides how long a new controller may not know every live replica yet. Pure: the clock is an argument."""

from __future__ import annotations

__all__ = ("HoldOff",)

AFTER_FIRST_S = 10.0
"""Every live supervisor is heard within this time once the way to the controller is open.

A supervisor whose call to the last controller was under way gives up after 3 s, and tries again a second later;
meanwhile Serve names the new one to it. On a busy machine each step takes longer.
"""

AT_MOST_S = 60.0
"""If no supervisor announces itself within this time, none exists."""


class HoldOff:
    """started_at_s: when the controller began, on a clock that only goes forward."""

    def __init__(self, started_at_s: float) -> None:
        self._started_at_s = started_at_s
        self._first_heard_s: float | None = None
        self._every_s = 1.0  # the longest interval between two announcements of a supervisor

    def heard(self, now_s: float, every_s: float = 1.0) -> None:
        """Note that a supervisor has announced itself. every_s: how often it does"""
        if self._first_heard_s is None:
            self._first_heard_s = now_s
        self._every_s = max(self._every_s, every_s)

    def holds(self, now_s: float) -> bool:
        """Return whether a replica may live that was not heard yet."""
        if self._first_heard_s is None:
            return now_s - self._started_at_s < AT_MOST_S
        return now_s - self._first_heard_s < AFTER_FIRST_S + self._every_s - 1.0
