"""Lets SGLang continue streams that began on another engine, and reports how.

SGLang resumes by *replay*: the tokens of the first engine are forced again, one step each. A way stays off where
SGLang's code differs from what it expects. ``LONGBOAT_SGLANG_RESUME=0`` turns it off.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from longboat_vllm.resume.install import ResumeState
from longboat_vllm.shapes import tried

__all__ = ("STATE", "SWITCH", "install")

SWITCH = "LONGBOAT_SGLANG_RESUME"
STATE = ResumeState(carried_problem="SGLang takes no tokens over as its own", engine="sglang")
"""What this process supports; filled while the plugin is registered."""


def install(log: Callable[[str], None]) -> None:
    """Install journal and replay in this process's SGLang, whichever of its processes it is. May be called again."""
    if os.environ.get(SWITCH) == "0":
        STATE.journal_problem = STATE.replay_problem = f"{SWITCH}=0 turns it off"
        return
    from longboat_sglang.resume import front_end, penalties, replay, seeds

    STATE.engine = f"sglang {_version()}"
    STATE.journal_problem = tried(front_end.install)
    STATE.replay_problem = STATE.journal_problem or tried(replay.install)
    if problem := tried(seeds.install):
        log(f"seeds may draw other tokens beside other requests: this SGLang's code differs ({problem})")
    if problem := tried(penalties.install):
        log(f"penalties may act otherwise in other processes: this SGLang's code differs ({problem})")
    if STATE.replay_problem:
        log(f"resuming streams is off: this SGLang's code differs ({STATE.replay_problem})")


def _version() -> str:
    import sglang

    return str(getattr(sglang, "__version__", "unknown"))
