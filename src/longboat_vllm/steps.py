"""How far the engine has come: steps so far, requests running and waiting, as its API server was told last."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("STEPS", "Steps")


@dataclass(slots=True)
class Steps:
    """Counted in the API server's process, without asking the engine core."""

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0


STEPS = Steps()
"""Of this process."""
