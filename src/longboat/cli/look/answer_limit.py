"""Limits how long ``longboat status`` waits for the cluster of its own node, whose parts may have just ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from longboat.cli import BEGAN_S, STATUS_S
from longboat.cli.shared.error_text import tell_error
from longboat.cluster.host.standing import Standing, standing_here
from longboat.core.errors import ClusterError
from longboat.folders import run_folder

__all__ = ("Wait", "answer_limit")

AHEAD_S = 1.0
"""What the machine is, is found before it is needed: on a busy machine, a look at its processes takes a while."""


@dataclass(slots=True)
class Wait:
    """The wait for the fleet's state. ``seen`` says what is known of the parts that it waits for."""

    limit_s: float
    seen: str = ""
    _answered: threading.Event = field(default_factory=threading.Event)

    @property
    def left_s(self) -> float:
        """How long the command may still wait."""
        return BEGAN_S + self.limit_s - time.monotonic()

    def end(self) -> None:
        """End the wait: the state has come, or an error says why it does not."""
        self._answered.set()

    def ends_within(self, time_s: float) -> bool:
        """Return whether the wait ends before ``time_s`` are over."""
        return self._answered.wait(max(0.0, time_s))


@contextmanager
def answer_limit(limit_s: float = STATUS_S) -> Iterator[Wait]:
    """End the process with an error where neither the block nor its wait ends within ``limit_s`` of the command.

    The error says what this machine is. A machine that is not a node has no limit: it has nothing to say.
    """
    wait = Wait(limit_s)
    if not os.environ.get("RAY_ADDRESS") and standing_here(run_folder()) is not None:
        threading.Thread(target=_guard, args=(wait,), daemon=True).start()
    try:
        yield wait
    finally:
        wait.end()


def _guard(wait: Wait) -> None:
    if wait.ends_within(wait.left_s - AHEAD_S):
        return
    here = standing_here(run_folder())
    if wait.ends_within(wait.left_s):
        return
    tell_error(error := _late(wait, here))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(error.exit_code)  # the main thread may wait inside Ray, where nothing interrupts it


def _late(wait: Wait, here: Standing | None) -> ClusterError:
    words = f"the fleet's state did not come within {wait.limit_s:g} s"
    words += f": {wait.seen}" if wait.seen else ""
    if here is None:
        return ClusterError(words)
    comes = (
        "a part that was killed comes back by itself within seconds, or the machine is busy: --timeout 60 waits longer"
    )
    return ClusterError(f"{here.what}, but {words}", hint=here.hint or comes)
