"""Makes steps of vLLM and SGLang last a while, so that a stream of few tokens is under way when its fleet changes.

vLLM imports this file in its server and in its engine core, where its arguments name it as ``paced_vllm`` does.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ("STEP_S", "paced_args", "paced_sglang", "paced_vllm")

STEP_S = 0.06
"""A step computes for a fifth of it: slower ones cost less while a test waits, and tests ask for fewer tokens."""
_MARK = "_paced"


def paced_vllm(*args: str) -> str:
    """Write the ``engine`` of a model in a fleet file: vLLM with slow steps. args: further ones"""
    folder = Path(os.environ["LONGBOAT_TEST_ENGINE_PYTHON"]).parent.parent
    return f"{{environment: {folder}, args: [{', '.join((*paced_args(), *args))}]}}"


def paced_args() -> tuple[str, ...]:
    """Return the arguments of vLLM that make its steps slow."""
    return (f"--reasoning-parser-plugin={__file__}",)


def paced_sglang() -> str:
    """Write the ``engine`` of a model in a fleet file: SGLang with slow steps, by a hook of its own for each step."""
    folder = Path(os.environ["LONGBOAT_TEST_SGLANG_PYTHON"]).parent.parent
    hook = {"hook_factory": "builtins:eval", "config": f'lambda *_: __import__("time").sleep({STEP_S})'}
    hooks = json.dumps([{"target_modules": ["model"], **hook}])
    return f"{{kind: sglang, environment: {folder}, args: [--forward-hooks, '{hooks}']}}"


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
