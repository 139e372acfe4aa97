"""The SGLang plugin: mends SGLang on CPUs, and resumes streams exactly.

SGLang loads it in each of its processes (entry point group ``sglang.srt.plugins``); loading it again changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from longboat_sglang import adapters, resume, tool_arguments, tool_blocks, without_cuda
from longboat_sglang.prefixes import front_end, tree
from longboat_vllm.process import lineage
from longboat_vllm.process.forked import FORKED
from longboat_vllm.shapes import UnexpectedShapeError

__all__ = ("register",)

_UNFOLLOWED = "gateways are not informed of prefixes"


def register() -> None:
    """Apply everything that fits this process: the entry point of the plugin."""
    if "LONGBOAT_GANG" in os.environ:
        lineage.end_together()
    if os.environ.get(FORKED) == "1":
        fork_children()
    without_cuda.mend()
    resume.install(_log)
    _mend(tree.install, _UNFOLLOWED)
    _mend(front_end.install, _UNFOLLOWED)
    _mend(tool_arguments.install, "arguments of tool calls may break their schemas")
    _mend(tool_blocks.install, "how tool calls are divided into events depends on the load")
    _mend(adapters.install, "requests may miss an adapter that is given up meanwhile")


def _mend(install: Callable[[], None], otherwise: str) -> None:
    """Install a mend where this SGLang's code is as expected; else log what may happen."""
    try:
        install()
    except (ImportError, AttributeError, UnexpectedShapeError) as error:
        _log(f"{otherwise}: this SGLang's code differs ({error})")


def fork_children() -> None:
    """Let SGLang fork its scheduler and detokenizer: everything that they import is loaded already."""
    import multiprocessing

    set_start_method = multiprocessing.set_start_method

    def set_start_method_that_forks(method: str | None, force: bool = False) -> None:
        set_start_method("fork" if method == "spawn" else method, force=force)

    multiprocessing.set_start_method = set_start_method_that_forks


def _log(text: str) -> None:
    logging.getLogger("sglang.srt.longboat").info("Longboat: %s", text)
