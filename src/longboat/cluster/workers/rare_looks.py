"""Has the main thread of a waiting process look for signals less often: Ray looks a hundred times a second.

Each look asks Python whether the interpreter ends. A look that pauses before it answers makes the next one later. Calls
to the process wait for as long, and signals end a pause. Where Ray looks in another way, nothing changes.
"""

from __future__ import annotations

import sys
import threading
import time
import types
from typing import Any

__all__ = ("RareLooks", "look_rarely")

LOOK_EVERY_S = 0.1


class RareLooks(types.ModuleType):
    """The module ``sys``, with a pause for the main thread in the question that each look asks."""

    def __init__(self, pause_s: float) -> None:
        super().__init__("sys")
        self._pause_s = pause_s

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    def is_finalizing(self) -> bool:
        """Return whether the interpreter ends; the main thread waits before."""
        if threading.get_ident() == threading.main_thread().ident:
            time.sleep(self._pause_s)
        return sys.is_finalizing()


def look_rarely(raylet: Any, pause_s: float = LOOK_EVERY_S) -> None:
    """Pause at each look. raylet: Ray's compiled module, ``ray._raylet``"""
    raylet.sys = RareLooks(pause_s)
