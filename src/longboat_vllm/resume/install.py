"""Lets vLLM go on with answers that began on another engine, and says how far this vLLM could be fitted for that.

Two ways, installed apart: *carried* (the engine takes the tokens for its own, as after a preemption: one prefill) and
*replay* (a logits processor forces them again, one step each). A way whose places in vLLM look otherwise than expected
stays off. ``LONGBOAT_VLLM_RESUME=0`` turns all of it off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longboat_vllm.resume.shapes import UnexpectedShapeError

__all__ = ("STATE", "SWITCH", "ResumeState", "install")

SWITCH = "LONGBOAT_VLLM_RESUME"
_UNREGISTERED = "the plugin is not registered"
_SWITCHED_OFF = f"{SWITCH}=0 turns it off"


@dataclass(slots=True)
class ResumeState:
    """Filled while the plugin is registered. A problem says why a way is off; empty where it is installed."""

    journal_problem: str = _UNREGISTERED
    carried_problem: str = _UNREGISTERED
    replay_problem: str = _UNREGISTERED
    engine: str = "vllm"

    @property
    def journal(self) -> bool:
        """Whether token ids can be told."""
        return not self.journal_problem

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
        }


STATE = ResumeState()
"""Of this process."""


def install(log: Callable[[str], None]) -> None:
    """Fit this process's vLLM, whichever of its processes it is. Doing it again changes nothing."""
    if os.environ.get(SWITCH) == "0":
        STATE.journal_problem = STATE.carried_problem = STATE.replay_problem = _SWITCHED_OFF
        return
    from longboat_vllm.resume import core as resume_core
    from longboat_vllm.resume import front_end as resume_front
    from longboat_vllm.resume import replay as resume_replay
    from longboat_vllm.resume import worker as resume_worker

    STATE.engine = f"vllm {_version()}"
    STATE.journal_problem = _tried(resume_front.install)
    STATE.replay_problem = STATE.journal_problem or _tried(resume_replay.install)
    STATE.carried_problem = STATE.journal_problem or _tried(resume_core.check, resume_worker.check)
    STATE.carried_problem = STATE.carried_problem or _tried(resume_core.install, resume_worker.install)
    for way, problem in (("carrying", STATE.carried_problem), ("replaying", STATE.replay_problem)):
        if problem:
            log(f"{way} answers of other engines is off: this vLLM looks otherwise ({problem})")


def _tried(*steps: Callable[[], None]) -> str:
    """What went wrong in the first step that failed; empty when none did."""
    try:
        for step in steps:
            step()
    except (ImportError, AttributeError, OSError, TypeError, UnexpectedShapeError) as error:
        return str(error) or type(error).__name__
    return ""


def _version() -> str:
    import vllm

    return str(getattr(vllm, "__version__", "unknown"))
