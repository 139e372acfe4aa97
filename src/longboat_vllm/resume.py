"""What this engine can do for answers that began elsewhere, as far as the plugin could install it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

__all__ = ("STATE", "SWITCH", "ResumeState")

SWITCH = "LONGBOAT_VLLM_RESUME"
"""Environment variable: ``0`` leaves vLLM as it is; nothing is journaled, carried or replayed."""


@dataclass(slots=True)
class ResumeState:
    """Filled while the plugin is registered. carried_problem, replay_problem: why not; empty where it is installed."""

    journal: bool = False
    carried_problem: str = "the plugin is not registered"
    replay_problem: str = "the plugin is not registered"
    engine: str = "vllm"
    runner: str = ""

    def refusal(self, mode: str) -> str:
        """Why a request cannot be continued in ``mode``; empty when it can."""
        return self.carried_problem if mode == "carried" else self.replay_problem

    def told(self) -> dict[str, Any]:
        """The answer to whoever asks for the engine's abilities."""
        problems = {"carried": self.carried_problem, "replay": self.replay_problem}
        detail = "; ".join(f"{mode} is off: {problem}" for mode, problem in problems.items() if problem)
        return {
            "carried": not self.carried_problem,
            "replay": not self.replay_problem,
            "detail": detail,
            "engine": self.engine,
            "runner": self.runner,
        }


STATE = ResumeState()
"""Of this process."""


def is_switched_off() -> bool:
    """Whether the flag turns resuming off."""
    return os.environ.get(SWITCH) == "0"
