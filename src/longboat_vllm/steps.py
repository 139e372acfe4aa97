"""How far the engine has come, and what it has to do, as its API server knows without asking the engine core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ("STEPS", "Steps")


def _none() -> int:
    return 0


@dataclass(slots=True)
class Steps:
    """num_waiting: at the last step; unfinished: counts the requests that the API server has handed on right now"""

    num_steps: int = 0
    num_waiting: int = 0
    unfinished: Callable[[], int] = _none

    def told(self) -> dict[str, int]:
        """The answer to whoever asks. An aborted request is no longer counted, although no step tells of it."""
        num_unfinished = self.unfinished()
        waiting = min(self.num_waiting, num_unfinished)
        return {"steps": self.num_steps, "running": num_unfinished - waiting, "waiting": waiting}


STEPS = Steps()
"""Of this process."""
