"""Counts the engine's steps and requests, as its API server knows them without asking the engine core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ("STEPS", "Steps")


def _none() -> int:
    return 0


@dataclass(slots=True)
class Steps:
    """The steps and requests of the engine of this process."""

    num_steps: int = 0
    num_waiting: int = 0  # at the last step
    unfinished: Callable[[], int] = _none  # counts the requests that the API server has handed on right now

    def told(self) -> dict[str, int]:
        """Return the counts as a document. An aborted request is not counted, although no step reports its end."""
        num_unfinished = self.unfinished()
        waiting = min(self.num_waiting, num_unfinished)
        return {"steps": self.num_steps, "running": num_unfinished - waiting, "waiting": waiting}


STEPS = Steps()
"""The steps of this process's engine."""
