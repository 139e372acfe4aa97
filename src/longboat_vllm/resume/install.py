"""Lets vLLM continue streams that began on another engine, and reports which ways of doing so this vLLM supports.

Two ways, installed separately: *carried* (the engine takes the tokens as its own, as after a preemption: one prefill)
and *replay* (a logits processor forces them again, one step each). A way stays off where vLLM's code differs from what
it expects. ``LONGBOAT_VLLM_RESUME=0`` turns both off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longboat_vllm.shapes import tried

__all__ = ("STATE", "SWITCH", "ResumeState", "install")

SWITCH = "LONGBOAT_VLLM_RESUME"
_UNREGISTERED = "the plugin is not registered"
_SWITCHED_OFF = f"{SWITCH}=0 turns it off"


@dataclass(slots=True)
class ResumeState:
    """The ways of resuming that this process supports, filled while the plugin is registered."""

    journal_problem: str = _UNREGISTERED  # why token ids cannot be reported; empty where they can
    carried_problem: str = _UNREGISTERED  # why this way is off; empty where it is installed
    replay_problem: str = _UNREGISTERED  # why this way is off; empty where it is installed
    engine: str = "vllm"

    @property
    def journal(self) -> bool:
        """Whether token ids can be reported."""
        return not self.journal_problem

    def refusal(self, mode: str) -> str:
        """Return why a request cannot be continued in ``mode``; empty where it can."""
        return self.carried_problem if mode == "carried" else self.replay_problem

    def told(self) -> dict[str, Any]:
        """Return the engine's abilities as a document."""
        problems = {"carried": self.carried_problem, "replay": self.replay_problem}
        detail = "; ".join(f"{mode} is off: {problem}" for mode, problem in problems.items() if problem)
        return {
            "carried": not self.carried_problem,
            "replay": not self.replay_problem,
            "detail": detail,
            "engine": self.engine,
        }


STATE = ResumeState()
"""The state of this process."""


def install(log: Callable[[str], None]) -> None:
    """Install both ways in this process's vLLM, whichever of its processes it is. May be called again."""
    if os.environ.get(SWITCH) == "0":
        STATE.journal_problem = STATE.carried_problem = STATE.replay_problem = _SWITCHED_OFF
        return
    from longboat_vllm.resume import core as resume_core
    from longboat_vllm.resume import front_end as resume_front
    from longboat_vllm.resume import replay as resume_replay
    from longboat_vllm.resume import worker as resume_worker

    STATE.engine = f"vllm {_version()}"
    STATE.journal_problem = tried(resume_front.install)
    STATE.replay_problem = STATE.journal_problem or tried(resume_replay.install)
    STATE.carried_problem = STATE.journal_problem or tried(resume_core.check, resume_worker.check)
    STATE.carried_problem = STATE.carried_problem or tried(resume_core.install, resume_worker.install)
    for way, problem in (("carrying", STATE.carried_problem), ("replaying", STATE.replay_problem)):
        if problem:
            log(f"{way} streams of other engines is off: this vLLM's code differs ({problem})")


def _version() -> str:
    import vllm

    return str(getattr(vllm, "__version__", "unknown"))
