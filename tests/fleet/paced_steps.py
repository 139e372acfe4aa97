"""Makes each step of vLLM last a while, so that a stream of few tokens is still under way when its fleet changes.

vLLM imports this file in its server and in its engine core, where its arguments name it as ``paced_vllm`` does.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ("STEP_S", "paced_vllm")

STEP_S = 0.03
_MARK = "_paced"


def paced_vllm(*args: str) -> str:
    """Write the ``engine`` of a model in a fleet file: vLLM with slow steps. args: further ones"""
    folder = Path(os.environ["LONGBOAT_TEST_ENGINE_PYTHON"]).parent.parent
    return f"{{environment: {folder}, args: [{', '.join((f'--reasoning-parser-plugin={__file__}', *args))}]}}"


def _pace_steps() -> None:
    from vllm.v1.engine.core import EngineCoreProc

    if not hasattr(EngineCoreProc._process_engine_step, _MARK):  # a core that was forked from its server has it
        EngineCoreProc._process_engine_step = _paced(EngineCoreProc._process_engine_step)


def _paced(step: Any) -> Any:
    @functools.wraps(step)
    def step_paced(core: Any) -> bool:
        ends_s = time.monotonic() + STEP_S
        executed = bool(step(core))
        if executed:
            time.sleep(max(0.0, ends_s - time.monotonic()))
        return executed

    setattr(step_paced, _MARK, True)
    return step_paced


if "vllm" in sys.modules:
    _pace_steps()
