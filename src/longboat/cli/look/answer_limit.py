"""Limits how long ``longboat status`` waits for the cluster of its own node, whose parts may have just ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from longboat.cli.shared.error_text import tell_error
from longboat.cluster.host.record import born_ticks
from longboat.cluster.host.standing import standing_here
from longboat.core.errors import ClusterError
from longboat.folders import run_folder

__all__ = ("answer_limit", "process_age_s")

LIMIT_S = 8.0
"""Since the process began. Parts of a node come back within seconds; Ray waits much longer for one of its own."""


@contextmanager
def answer_limit() -> Iterator[Callable[[], None]]:
    """End the process with an error where the block neither ends nor calls the function it gets in time.

    The error says what this machine is. A machine that is not a node has no limit: it has nothing to say.
    """
    answered = threading.Event()
    if not os.environ.get("RAY_ADDRESS") and standing_here(run_folder()) is not None:
        left_s = max(0.0, LIMIT_S - process_age_s())
        threading.Thread(target=_guard, args=(answered, left_s), daemon=True).start()
    try:
        yield answered.set
    finally:
        answered.set()


def process_age_s() -> float:
    """Return how long this process has run, the start of its interpreter included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - born_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")


def _guard(answered: threading.Event, left_s: float) -> None:
    if answered.wait(left_s):
        return
    error = _late()
    if answered.is_set():
        return
    tell_error(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(error.exit_code)  # the main thread may wait inside Ray, where nothing interrupts it


def _late() -> ClusterError:
    here, words = standing_here(run_folder()), f"the fleet's state did not come within {LIMIT_S:.0f} s"
    if here is None:
        return ClusterError(words)
    comes = "a part that was killed comes back by itself within seconds; longboat status --watch waits longer"
    return ClusterError(f"{here.what}, but {words}", hint=here.hint or comes)
