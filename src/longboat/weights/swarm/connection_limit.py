"""The connections that a node's server keeps at a time: how many, and when they are to end."""

from __future__ import annotations

import resource
import threading
from typing import Final

__all__ = ("ConnectionLimit", "most_connections")

MOST: Final = 1024
FEWEST: Final = 128


class ConnectionLimit:
    """Places for connections. Each has one from ``enter`` to ``leave``."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._changed = threading.Condition()

    def enter(self, within_s: float) -> bool:
        """Take a place; False where none is free until then."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._taken < self.most, within_s):
                return False
            self._taken += 1
            return True

    def leave(self) -> None:
        """Give a place back."""
        with self._changed:
            self._taken -= 1
            self._changed.notify()

    @property
    def is_crowded(self) -> bool:
        """Whether more than half of the places are taken: a connection ends with its next response then."""
        return self._taken * 2 > self.most


def most_connections() -> int:
    """Return how many connections this process may keep: a quarter of its descriptors, within limits."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if descriptors == resource.RLIM_INFINITY else min(MOST, max(FEWEST, descriptors // 4))
