"""Limits how long ``longboat status`` waits for the cluster of its own node, whose parts may have just ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from longboat.cli.shared.error_text import tell_error
from longboat.cluster.host.standing import standing_here
from longboat.core.errors import ClusterError
from longboat.folders import run_folder

__all__ = ("LIMIT_S", "answer_limit")

LIMIT_S = 7.0
"""Parts of a node come back within seconds; Ray waits much longer for one of its own.

On a busy machine, the command's own start and end take two seconds more.
"""
AHEAD_S = 1.0
"""The words are found before they are needed: on a busy machine, a look at the node's processes takes a while."""


@contextmanager
def answer_limit(limit_s: float = LIMIT_S) -> Iterator[Callable[[], None]]:
    """End the process with an error where the block neither ends nor calls the function it gets within ``limit_s``.

    The error says what this machine is. A machine that is not a node has no limit: it has nothing to say.
    """
    answered = threading.Event()
    if not os.environ.get("RAY_ADDRESS") and standing_here(run_folder()) is not None:
        threading.Thread(target=_guard, args=(answered, limit_s), daemon=True).start()
    try:
        yield answered.set
    finally:
        answered.set()


def _guard(answered: threading.Event, limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    if answered.wait(limit_s - AHEAD_S):
        return
    error = _late(limit_s)
    if answered.wait(max(0.0, end_s - time.monotonic())):
        return
    tell_error(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(error.exit_code)  # the main thread may wait inside Ray, where nothing interrupts it


def _late(limit_s: float) -> ClusterError:
    here, words = standing_here(run_folder()), f"the fleet's state did not come within {limit_s:g} s"
    if here is None:
        return ClusterError(words)
    comes = (
        "a part that was killed comes back by itself within seconds, or the machine is busy: --timeout 60 waits longer"
    )
    return ClusterError(f"{here.what}, but {words}", hint=here.hint or comes)
