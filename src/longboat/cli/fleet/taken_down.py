"""Finds out that another command took down the fleet that this one holds up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from longboat.core.errors import ClusterError

__all__ = ("FleetWatch", "TakenDownError")

LOOK_EVERY_S = 1.0
ASK_EVERY_S = 5.0


class TakenDownError(Exception):
    """Another command took the fleet down: nothing is left to take down, and nothing went wrong."""


class HeldFleet(Protocol):
    """The question to the cluster; ``ServeApplications`` answers it."""

    def has_fleet(self) -> bool: ...


class FleetWatch:
    """Looks at the cluster now and then."""

    def __init__(
        self,
        fleet: HeldFleet,
        is_kept: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """is_kept: whether the cluster is still there, as this machine knows; cheap to ask, other than ``fleet``"""
        self._fleet = fleet
        self._is_kept = is_kept
        self._clock = clock
        self._sleep = sleep
        self._asked_at_s = clock()

    def hold(self) -> None:
        """Wait until the fleet is taken down; then raise TakenDownError."""
        while True:
            self.pause(LOOK_EVERY_S)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises TakenDownError when the fleet is gone."""
        self._sleep(seconds)
        if not self._is_kept():
            raise TakenDownError
        if self._clock() - self._asked_at_s >= ASK_EVERY_S:
            self._asked_at_s = self._clock()
            self._ask()

    def _ask(self) -> None:
        try:
            if self._fleet.has_fleet():
                return
        except ClusterError:  # a head that does not answer may come back
            return
        raise TakenDownError
